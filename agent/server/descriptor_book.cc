#include "agent/server/descriptor_book.h"

#include <algorithm>

namespace tangram {

std::vector<uint32_t> DescriptorBook::NumbersOf(std::span<const SharedFd> descriptors,
                                                std::vector<PassedFd>* fresh) {
  std::vector<uint32_t> out;
  for (const SharedFd& descriptor : descriptors) {
    const auto known = numbers_.find(descriptor);
    if (known != numbers_.end()) {
      out.push_back(known->second);
      continue;
    }
    while (by_number_.contains(next_)) ++next_;
    const uint32_t number = next_;
    Has(number, descriptor);
    fresh->push_back({number, descriptor->get()});
    out.push_back(number);
  }
  return out;
}

void DescriptorBook::Has(uint32_t number, const SharedFd& descriptor) {
  numbers_[descriptor] = number;
  by_number_[number] = descriptor;
  next_ = std::max(next_, number + 1);
}

void DescriptorBook::Closed(uint32_t number) {
  const auto it = by_number_.find(number);
  if (it == by_number_.end()) return;
  numbers_.erase(it->second);
  by_number_.erase(it);
}

void Renumber(google::protobuf::RepeatedPtrField<v1::Extent>* extents,
              std::span<const uint32_t> numbers) {
  for (v1::Extent& extent : *extents) extent.set_fd_index(numbers[extent.fd_index()]);
}

}  // namespace tangram
