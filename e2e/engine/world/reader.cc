#include "e2e/engine/world/reader.h"

#include <utility>

namespace tangram::engine {

Result<std::vector<const void*>> Reader::Read(std::span<const Range> ranges) {
  std::vector<const void*> out;
  std::map<Range, std::vector<std::byte>> fresh;
  std::vector<device::CopyOp> copies;
  for (const Range& range : ranges) {
    const device::Memory memory{device_, reinterpret_cast<uint64_t>(range.at), range.bytes};
    const bool nothing = range.at == nullptr || range.bytes == 0;
    if (nothing || !device::View(memory).empty()) {
      out.push_back(range.at);
      continue;
    }
    auto it = kept_.find(range);
    if (it == kept_.end()) {
      bool is_new = false;
      std::tie(it, is_new) = fresh.try_emplace(range);
      if (is_new) {
        it->second.resize(range.bytes);
        copies.push_back({device::Memory::Own(it->second), memory});
      }
    }
    out.push_back(it->second.data());
  }
  if (!copies.empty()) TANGRAM_RETURN_IF_ERROR(device_->Copy(copies).Wait());
  kept_.merge(std::move(fresh));  // moves nodes, so addresses stay valid
  return out;
}

uint64_t Reader::kept_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [range, copy] : kept_) bytes += copy.size();
  return bytes;
}

}  // namespace tangram::engine
