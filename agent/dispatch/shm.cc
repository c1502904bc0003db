#include "agent/dispatch/shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace tangram::dispatch {
namespace {

constexpr size_t kHeadBytes = 4096, kPrefix = 64;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status Failed(const char* doing, uint64_t bytes) {
  return {Code::kNoMemory, std::string(doing) + " " + std::to_string(bytes) +
                               " bytes of shared memory: " + std::strerror(errno)};
}

Result<uint8_t*> Mapped(int fd, uint64_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return Failed("mapping", bytes);
  return static_cast<uint8_t*>(at);
}

}  // namespace

uint64_t Geometry::bytes() const { return kHeadBytes + kLanes * slots * (kPrefix + slot_bytes); }

ShmRing::ShmRing(UniqueFd fd, const Geometry& geometry, uint8_t* at)
    : fd_(std::move(fd)), geometry_(geometry), at_(at) {
  static_assert(sizeof(Head) <= kHeadBytes);
}

ShmRing::~ShmRing() { munmap(at_, geometry_.bytes()); }

Result<std::unique_ptr<ShmRing>> ShmRing::Create(const Geometry& geometry) {
  const uint64_t bytes = geometry.bytes();
  UniqueFd fd(memfd_create("tangram-dispatch", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return Failed("making", bytes);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return Failed("sealing", bytes);
  const Result<uint8_t*> at = Mapped(fd.get(), bytes);
  if (!at.ok()) return at.status();
  // The counters start at zero, as the memory does.
  return std::unique_ptr<ShmRing>(new ShmRing(std::move(fd), geometry, *at));
}

Result<std::unique_ptr<ShmRing>> ShmRing::Map(UniqueFd fd, const Geometry& geometry) {
  const uint64_t bytes = geometry.bytes();
  struct stat is {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &is) != 0 || static_cast<uint64_t>(is.st_size) != bytes)
    return Status{Code::kInvalid, "a peer's memory of " + std::to_string(is.st_size) +
                                      " bytes, and it should be " + std::to_string(bytes)};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Status{Code::kInvalid, "a peer's memory that it could cut short"};
  const Result<uint8_t*> at = Mapped(fd.get(), bytes);
  if (!at.ok()) return at.status();
  return std::unique_ptr<ShmRing>(new ShmRing(std::move(fd), geometry, *at));
}

Result<UniqueFd> ShmRing::Descriptor() const {
  UniqueFd copy(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Failed("a descriptor of", geometry_.bytes());
  return copy;
}

uint8_t* ShmRing::Slot(Lane lane, uint64_t number) const {
  const uint64_t slot = static_cast<uint64_t>(lane) * geometry_.slots + number % geometry_.slots;
  return at_ + kHeadBytes + slot * (kPrefix + geometry_.slot_bytes);
}

uint8_t* ShmRing::Room(Lane lane) {
  const auto l = static_cast<size_t>(lane);
  if (own_[l] - seen_[l] >= geometry_.slots) {
    seen_[l] = head().read[l].value.load(std::memory_order_acquire);
    if (own_[l] - seen_[l] >= geometry_.slots) return nullptr;
  }
  return Slot(lane, own_[l]) + kPrefix;
}

void ShmRing::Publish(Lane lane, size_t bytes) {
  const auto l = static_cast<size_t>(lane);
  const uint64_t size = bytes;
  std::memcpy(Slot(lane, own_[l]), &size, sizeof size);
  head().written[l].value.store(++own_[l], std::memory_order_release);
}

void ShmRing::Beat() { head().beats.value.fetch_add(1, std::memory_order_relaxed); }

uint64_t ShmRing::Beats() const { return head().beats.value.load(std::memory_order_relaxed); }

Result<std::span<const uint8_t>> ShmRing::Front(Lane lane) {
  const auto l = static_cast<size_t>(lane);
  if (seen_[l] == own_[l]) {
    seen_[l] = head().written[l].value.load(std::memory_order_acquire);
    if (seen_[l] == own_[l]) return std::span<const uint8_t>();
    if (seen_[l] - own_[l] > geometry_.slots) {
      const Status bad{Code::kInternal, "its ring says " + std::to_string(seen_[l] - own_[l]) +
                                            " slots of " + std::to_string(geometry_.slots)};
      seen_[l] = own_[l];
      return bad;
    }
  }
  const uint8_t* const slot = Slot(lane, own_[l]);
  uint64_t size = 0;
  std::memcpy(&size, slot, sizeof size);
  if (size > geometry_.slot_bytes)
    return Status{Code::kInternal, "a slot of " + std::to_string(size) + " bytes in room for " +
                                       std::to_string(geometry_.slot_bytes)};
  return std::span<const uint8_t>(slot + kPrefix, size);
}

void ShmRing::Pop(Lane lane) {
  const auto l = static_cast<size_t>(lane);
  head().read[l].value.store(++own_[l], std::memory_order_release);
}

std::span<uint8_t> ShmLink::Room(Lane lane, size_t want) {
  if (stream_ == nullptr) return {};
  uint8_t* const room = out_->Room(lane);
  if (room == nullptr) return {};
  return {room, std::min<size_t>(want, out_->slot_bytes())};
}

std::span<const uint8_t> ShmLink::Front(Lane lane) {
  if (stream_ == nullptr || !broken_.ok()) return {};
  const Result<std::span<const uint8_t>> front = in_->Front(lane);
  if (front.ok()) return *front;
  broken_ = front.status();
  return {};
}

Status ShmLink::Work() {
  if (!broken_.ok()) return broken_;
  if (stream_ == nullptr) return {Code::kUnavailable, "this rank disconnected"};
  if (stream_->Disturbed()) return {Code::kUnavailable, "it ended, or disconnected"};
  return OkStatus();
}

}  // namespace tangram::dispatch
