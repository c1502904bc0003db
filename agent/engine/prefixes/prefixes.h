// What of prompts' beginnings a rank has cached, as gateways are told it (tangram.v1.Prefixes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "tangram/v1/serve.pb.h"

namespace tangram::engine {

// Before the first block, and of a block after that hash: those of gateways.
uint64_t HashOfSalt(std::string_view salt);
uint64_t HashAfter(uint64_t before, std::span<const uint32_t> tokens);

struct PrefixNews {
  std::vector<uint64_t> here, gone;

  void AddTo(v1::Prefixes* out) const;
};

class CachedPrefixes {
 public:
  // Of one message to gateways.
  static constexpr size_t kNew = 1024, kAgain = 256;

  void Here(uint64_t hash);
  void Gone(uint64_t hash);
  // What came and what went since the last calls, at most `most` of them, and `again` of those that
  // are here, all in turn: who missed some hears of them.
  PrefixNews Take(size_t most, size_t again);

 private:
  // Changes that nobody took: beyond it they are forgotten, and heard of again or never.
  static constexpr size_t kMostNews = 1 << 16;
  // As many as a gateway keeps of all ranks: more are not told.
  static constexpr size_t kMost = 1 << 20;

  void Note(uint64_t hash, bool here);

  std::set<uint64_t> here_;
  std::map<uint64_t, bool> news_;  // by hash: whether it is here
  uint64_t told_again_ = 0;        // the one that was told again last
};

}  // namespace tangram::engine
