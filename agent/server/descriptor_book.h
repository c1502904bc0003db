// The descriptors that an engine has, and their numbers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "agent/base/unique_fd.h"
#include "agent/gate/frame.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

// For one connection. Descriptors are identified by their owner and not kept alive, so that devices
// can free them. Not thread-safe.
class DescriptorBook {
 public:
  // The numbers of these descriptors, in order. `fresh` receives those that the engine does not
  // have; send them before any message that uses their numbers.
  std::vector<uint32_t> NumbersOf(std::span<const SharedFd> descriptors,
                                  std::vector<PassedFd>* fresh);
  // The engine has this descriptor under this number, which either side assigned.
  void Has(uint32_t number, const SharedFd& descriptor);
  // The engine has closed it. Unknown numbers are ignored.
  void Closed(uint32_t number);

 private:
  using Key = std::weak_ptr<const UniqueFd>;
  std::map<Key, uint32_t, std::owner_less<Key>> numbers_;
  std::map<uint32_t, Key> by_number_;
  uint32_t next_ = 0;
};

// Replaces list indexes in the extents by descriptor numbers.
void Renumber(google::protobuf::RepeatedPtrField<v1::Extent>* extents,
              std::span<const uint32_t> numbers);

}  // namespace tangram
