#include "agent/mover/arrivals.h"

#include <algorithm>
#include <utility>

namespace tangram::mover {

Arrivals::~Arrivals() {
  for (Part& part : parts_) {
    if (part.under_way) (void)part.event.Wait();
  }
}

Status Arrivals::Settle(Part* part) {
  if (!std::exchange(part->under_way, false)) return OkStatus();
  TANGRAM_RETURN_IF_ERROR(part->event.Wait());
  part->copies.clear();
  part->used = 0;
  for (const uint64_t hash : std::exchange(part->hashes, {})) {
    TANGRAM_RETURN_IF_ERROR(arrived_(told_++, hash));
  }
  return OkStatus();
}

Status Arrivals::Begin() {
  Part& part = parts_[filled_];
  if (part.copies.empty()) return OkStatus();
  part.event = part.copies.front().to.device->Copy(part.copies);
  part.under_way = true;
  filled_ = 1 - filled_;
  return Settle(&parts_[filled_]);
}

Result<std::span<std::byte>> Arrivals::Room(device::Device* device, uint64_t bytes) {
  Part* part = &parts_[filled_];
  const bool another = !part->copies.empty() && (part->copies.front().to.device != device ||
                                                 part->used + bytes > part->buffer->size);
  if (another) {
    if (Status status = Begin(); !status.ok()) return status;
    part = &parts_[filled_];
  }
  if (part->buffer->of != device || part->buffer->size < bytes) {
    const uint64_t size = std::max(kBuffer, bytes);
    auto made = device->Staging(size);
    if (!made.ok()) return made.status();
    *part->buffer = {std::move(made).value(), size, device};
  }
  const std::span<std::byte> out(part->buffer->bytes.get() + part->used, bytes);
  part->used += bytes;
  return out;
}

Status Arrivals::TakeInParts(const device::Memory& to, const Read& read) {
  TANGRAM_RETURN_IF_ERROR(Finish());
  for (uint64_t at = 0; at < to.bytes; at += kBuffer) {
    const uint64_t bytes = std::min(kBuffer, to.bytes - at);
    const auto room = Room(to.device, bytes);
    if (!room.ok()) return room.status();
    TANGRAM_RETURN_IF_ERROR(read(*room));
    parts_[filled_].copies.push_back({to.Part(at, bytes), device::Memory::Own(*room)});
  }
  TANGRAM_RETURN_IF_ERROR(Finish());
  uint64_t hash = 0;
  TANGRAM_RETURN_IF_ERROR(device::HashNow(to, &hash));
  return arrived_(told_++, hash);
}

Status Arrivals::Take(const device::Memory& to, const Read& read) {
  const bool has_bytes = to.device == nullptr || to.device->has_bytes();
  if (to.device == nullptr || !has_bytes || device::View(to).size() == to.bytes) {
    TANGRAM_RETURN_IF_ERROR(Finish());
    TANGRAM_RETURN_IF_ERROR(device::Fill(to, read));
    uint64_t hash = 0;
    TANGRAM_RETURN_IF_ERROR(device::HashNow(to, &hash));
    return arrived_(told_++, hash);
  }
  if (to.bytes > kBuffer && to.shape == nullptr) return TakeInParts(to, read);
  const auto room = Room(to.device, to.bytes);
  if (!room.ok()) return room.status();
  TANGRAM_RETURN_IF_ERROR(read(*room));
  Part& part = parts_[filled_];
  part.copies.push_back({to, device::Memory::Own(*room), &part.hashes.emplace_back(0)});
  return OkStatus();
}

Status Arrivals::Finish() {
  // Begin settles the previous buffer.
  TANGRAM_RETURN_IF_ERROR(Begin());
  return Settle(&parts_[1 - filled_]);
}

}  // namespace tangram::mover
