// Which descriptors an engine has, and under which numbers.
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

// Of one connection. A descriptor is known by who owns it, and is not kept alive: what a device
// gives up is gone. Not thread-safe.
class DescriptorBook {
 public:
  // The numbers of these descriptors, in their order. Those that the engine has not had are
  // appended to `fresh`, and are to be passed before anybody uses their numbers.
  std::vector<uint32_t> NumbersOf(std::span<const SharedFd> descriptors,
                                  std::vector<PassedFd>* fresh);
  // The engine has this one under this number, whoever gave it that.
  void Has(uint32_t number, const SharedFd& descriptor);
  // It has it no more. What is not known is none of ours.
  void Closed(uint32_t number);

 private:
  using Key = std::weak_ptr<const UniqueFd>;
  std::map<Key, uint32_t, std::owner_less<Key>> numbers_;
  std::map<uint32_t, Key> by_number_;
  uint32_t next_ = 0;
};

// Extents that name descriptors by their place in a list name them by number.
void Renumber(google::protobuf::RepeatedPtrField<v1::Extent>* extents,
              std::span<const uint32_t> numbers);

}  // namespace tangram
