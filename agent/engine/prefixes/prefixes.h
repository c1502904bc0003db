// The prompt prefixes that a rank has cached, as reported to gateways (tangram.v1.Prefixes).
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

// The hash before the first block, and the hash after a block of `tokens`: those of gateways.
uint64_t HashOfSalt(std::string_view salt);
uint64_t HashAfter(uint64_t before, std::span<const uint32_t> tokens);

struct PrefixNews {
  std::vector<uint64_t> here, gone;

  void AddTo(v1::Prefixes* out) const;
};

class CachedPrefixes {
 public:
  // Hashes in one message to gateways.
  static constexpr size_t kNew = 1024, kAgain = 256;

  void Here(uint64_t hash);
  void Gone(uint64_t hash);
  // The hashes added and removed since the last call, at most `most`, and `again` of the cached
  // ones, all in turn: a gateway that missed some receives them again.
  PrefixNews Take(size_t most, size_t again);

 private:
  // Changes not yet taken: beyond this number they are dropped. Repeats cover the additions only.
  static constexpr size_t kMostNews = 1 << 16;
  // A gateway keeps as many of all ranks; hashes beyond it are not recorded.
  static constexpr size_t kMost = 1 << 20;

  void Note(uint64_t hash, bool here);

  std::set<uint64_t> here_;
  std::map<uint64_t, bool> news_;  // by hash: whether it is cached
  uint64_t told_again_ = 0;        // the hash repeated last
};

}  // namespace tangram::engine
