// Memory of another process of this machine, mapped for reading as far as somebody reads it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "agent/device/platform.h"

namespace tangram::mover {

// Thread-safe.
class PeerMemory {
 public:
  // All of what the descriptor shows, `bytes`. kInvalid: it is not memory that this platform maps,
  // or could be taken away while it is read.
  static Result<std::shared_ptr<PeerMemory>> Open(const device::Platform& platform, int descriptor,
                                                  uint64_t bytes);
  // These bytes, mapped, for as long as this lives. kInvalid: they do not lie in it.
  Result<device::Memory> At(const device::Extent& extent);

 private:
  PeerMemory() = default;

  std::unique_ptr<device::Device> device_;
  uint64_t bytes_ = 0, chunk_ = 0;  // mapped in multiples of `chunk_`
  device::BlockPtr block_;
  device::SpacePtr space_;
  std::mutex mu_;           // everything below
  std::vector<bool> here_;  // by chunk
  std::vector<device::Mapping> mappings_;
};

}  // namespace tangram::mover
