// What is mapped in a range of addresses, and from where: to tell a new agent.
#pragma once

#include <cstdint>
#include <map>

#include "tangram/v1/engine.pb.h"

namespace tangram {

class PageMap {
 public:
  struct Run {
    uint64_t bytes = 0;
    uint32_t fd_index = 0;
    uint64_t fd_offset = 0;
  };

  // The extents lie one after another from `place` on; what was there is there no more.
  void Map(uint64_t place, const google::protobuf::RepeatedPtrField<v1::Extent>& extents);
  void Unmap(uint64_t place, uint64_t bytes);
  // By place.
  const std::map<uint64_t, Run>& runs() const { return runs_; }

 private:
  void Cut(uint64_t place);

  std::map<uint64_t, Run> runs_;
};

}  // namespace tangram
