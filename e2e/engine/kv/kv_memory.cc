#include "e2e/engine/kv/kv_memory.h"

#include <algorithm>

namespace tangram::engine {

KvMemory::KvMemory(device::Device* device, void* region, uint64_t bytes, uint64_t page_bytes)
    : device_(device), region_(region), page_bytes_(page_bytes) {
  if (bytes == 0 || !device::View(In(0, bytes)).empty()) return;
  mirror_.reset(new std::byte[bytes]);  // its pages are touched when first used
  states_.resize(bytes / page_bytes, kAbsent);
}

device::Memory KvMemory::In(uint64_t offset, uint64_t bytes) const {
  return {device_, reinterpret_cast<uint64_t>(region_) + offset, bytes};
}

Status KvMemory::CopyMarked(const std::vector<bool>& marked, bool to_region) {
  std::vector<device::CopyOp> copies;
  for (size_t page = 0; page < marked.size();) {
    const auto first = page;
    while (page < marked.size() && marked[page]) ++page;
    if (page == first) {
      ++page;
      continue;
    }
    const uint64_t offset = first * page_bytes_, bytes = (page - first) * page_bytes_;
    const auto here = device::Memory::Own({mirror_.get() + offset, bytes});
    if (to_region) {
      copies.push_back({In(offset, bytes), here});
    } else {
      copies.push_back({here, In(offset, bytes)});
    }
  }
  if (copies.empty()) return OkStatus();
  TANGRAM_RETURN_IF_ERROR(device_->Copy(copies).Wait());
  for (size_t page = 0; page < marked.size(); ++page) {
    if (marked[page]) states_[page] = kSame;
  }
  return OkStatus();
}

Status KvMemory::Bring(std::span<const Pages> pages) {
  if (mirror_ == nullptr) return OkStatus();
  std::vector<bool> wanted(states_.size(), false);
  for (const Pages& run : pages) {
    for (uint32_t page = run.first; page < run.first + run.count; ++page) {
      if (states_[page] == kAbsent) wanted[page] = true;
    }
  }
  return CopyMarked(wanted, false);
}

void KvMemory::Write(Pages pages) {
  if (mirror_ == nullptr) return;
  std::fill_n(states_.begin() + pages.first, pages.count, kWritten);
}

Status KvMemory::Flush() {
  if (mirror_ == nullptr) return OkStatus();
  std::vector<bool> written(states_.size());
  for (size_t page = 0; page < states_.size(); ++page) written[page] = states_[page] == kWritten;
  return CopyMarked(written, true);
}

void KvMemory::Forget() { std::fill(states_.begin(), states_.end(), kAbsent); }

Status KvMemory::Copy(std::span<const Move> moves) {
  std::vector<device::CopyOp> copies;
  for (const Move& move : moves) {
    copies.push_back({In(move.to, move.length), In(move.from, move.length)});
    if (mirror_ == nullptr || move.length == 0) continue;
    const uint64_t end = (move.to + move.length - 1) / page_bytes_;
    for (uint64_t page = move.to / page_bytes_; page <= end; ++page) states_[page] = kAbsent;
  }
  return copies.empty() ? OkStatus() : device_->Copy(copies).Wait();
}

}  // namespace tangram::engine
