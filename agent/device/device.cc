#include "agent/device/device.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "agent/device/hash.h"
#include "agent/device/runs.h"

namespace tangram::device {

std::span<std::byte> View(const Memory& memory) {
  if (memory.shape != nullptr) return {};
  if (memory.device != nullptr) return memory.device->ViewOf(memory);
  return {reinterpret_cast<std::byte*>(memory.address), memory.bytes};
}

namespace {

// Keeps blocks that are still mapped somewhere, so their bytes are not reused while the process
// lives.
void KeepForGood(BlockPtr block) {
  static std::mutex mu;
  static auto* const all = new std::vector<BlockPtr>;  // not destroyed at exit
  const std::scoped_lock lock(mu);
  all->push_back(std::move(block));
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(space_, other.space_);
  std::swap(block_, other.block_);
  std::swap(at_, other.at_);
  std::swap(slice_, other.slice_);
  return *this;
}

Mapping::~Mapping() {
  if (space_ != nullptr && !space_->Unmap(at_, slice_.bytes)) KeepForGood(std::move(block_));
}

Mapping Mapping::Split(uint64_t bytes) {
  Mapping tail(space_, at_ + bytes, block_, {slice_.offset + bytes, slice_.bytes - bytes});
  slice_.bytes = bytes;
  return tail;
}

void Device::Release(std::vector<Mapping> mappings, const Event& after) {
  // A failed copy has stopped using its memory too.
  (void)after.Wait();
  std::sort(mappings.begin(), mappings.end(), [](const Mapping& a, const Mapping& b) {
    return std::pair(a.space_.get(), a.at_) < std::pair(b.space_.get(), b.at_);
  });
  for (size_t i = 0; i < mappings.size();) {
    const SpacePtr space = mappings[i].space_;
    const uint64_t at = mappings[i].at_;
    uint64_t end = at;
    const size_t first = i;
    for (; i < mappings.size() && mappings[i].space_ == space && mappings[i].at_ == end; ++i) {
      end += mappings[i].bytes();
      mappings[i].space_.reset();  // `space` unmaps the whole run below
    }
    if (space == nullptr || space->Unmap(at, end - at)) continue;
    for (size_t k = first; k < i; ++k) KeepForGood(std::move(mappings[k].block_));
  }
}

Status Fill(const Memory& memory, const std::function<Status(std::span<std::byte>)>& write) {
  if (memory.device != nullptr && !memory.device->has_bytes()) return OkStatus();
  const std::span<std::byte> there = View(memory);
  if (there.size() == memory.bytes) return write(there);
  std::vector<std::byte> bytes(memory.bytes);
  TANGRAM_RETURN_IF_ERROR(write(bytes));
  const CopyOp op{memory, Memory::Own(bytes)};
  if (memory.device != nullptr) return memory.device->Copy({&op, 1}).Wait();
  CopyStrips(op.to, op.from);
  return OkStatus();
}

Status HashNow(const Memory& memory, uint64_t* hash) {
  if (memory.device == nullptr) {
    *hash = memory.shape != nullptr ? HashStrips(memory) : HashOf(View(memory));
    return OkStatus();
  }
  const HashOp op{memory, hash};
  return memory.device->Hash({&op, 1}).Wait();
}

Result<std::pair<SpacePtr, Mapping>> MapWhole(Device& device) {
  auto space = device.Reserve(device.total_bytes());
  if (!space.ok()) return space.status();
  auto block = device.Create(device.total_bytes());
  if (!block.ok()) return block.status();
  const Placement whole{0, *block, {0, device.total_bytes()}};
  auto mapped = device.Map(*space, {&whole, 1}, Access::kReadWrite);
  if (!mapped.ok()) return mapped.status();
  return std::pair(std::move(*space), std::move(mapped->front()));
}

}  // namespace tangram::device
