// A request as its home knows it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tangram/v1/serve.pb.h"

namespace tangram::engine {

struct Sequence {
  v1::Submit submit;             // as received, prompt included
  std::string gateway;           // whose session receives the tokens
  std::vector<uint32_t> tokens;  // prompt, then generated tokens
  uint32_t computed = 0;         // positions whose KV is written
  std::vector<uint32_t> blocks;  // of the home, in position order
  uint64_t arrival = 0;          // for FIFO across homes
  bool held = false;             // admitted: other homes free idle blocks for it first

  const std::string& id() const { return submit.request(); }
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(submit.prompt_size()); }
  // Maximum number of positions whose KV it may need.
  uint32_t reserved_tokens() const { return prompt_tokens() + submit.max_tokens(); }
  uint32_t BlocksFor(uint32_t positions, uint32_t block_tokens) const {
    return (positions + block_tokens - 1) / block_tokens;
  }
  // Blocks it may still allocate.
  uint32_t FutureBlocks(uint32_t block_tokens) const {
    const uint32_t most = BlocksFor(reserved_tokens(), block_tokens);
    return most - std::min<uint32_t>(most, static_cast<uint32_t>(blocks.size()));
  }
};

}  // namespace tangram::engine
