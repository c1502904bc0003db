#include "agent/device/cuda_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "agent/device/runs.h"
#include "kernels/kernels.h"

namespace tangram::device {
namespace {

// A multiple of every access width, so it limits none.
constexpr uint64_t kAligned = 256;
uint64_t Align(uint64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

template <typename T>
uint64_t BytesOf(const std::vector<T>& list) {
  return list.size() * sizeof(T);
}

}  // namespace

void CudaBatch::Strips::Add(kernels::CopyStrip strip) {
  const uint64_t own = kernels::NumberStrips({&strip, 1});
  strip.first = std::exchange(units, units + own);
  list.push_back(strip);
}

void CudaBatch::Ranges::Add(kernels::HashRange range, uint64_t* hash) {
  const uint64_t own = kernels::NumberRanges({&range, 1});
  range.first = std::exchange(units, units + own);
  list.push_back(range);
  wanted.push_back(hash);
}

void CudaBatch::Copy(const CopyOp& op) {
  if (op.hash != nullptr) {
    copied_.Add({op.from.address, op.from.bytes, op.to.address, 0, 0}, op.hash);
    return;
  }
  EachPair(op.to, op.from, [&](const Strip& to, const Strip& from) {
    copies_.Add({to.address, to.pitch, from.address, from.pitch, to.bytes, to.lines, 0});
  });
}

uint64_t CudaBatch::PlaceFor(std::byte* host, uint64_t bytes, std::vector<Run>* runs) {
  Run* const last = runs->empty() ? nullptr : &runs->back();
  if (last != nullptr && last->host + last->bytes == host &&
      last->area + last->bytes == area_bytes_) {
    last->bytes += bytes;
  } else {
    area_bytes_ = Align(area_bytes_);
    runs->push_back({host, area_bytes_, bytes});
  }
  area_bytes_ += bytes;
  return area_bytes_ - bytes;
}

void CudaBatch::FromHost(const CopyOp& op) {
  const uint64_t at =
      PlaceFor(reinterpret_cast<std::byte*>(op.from.address), op.from.bytes, &come_);
  EachPair(op.to, {op.to.device, at, op.from.bytes}, [&](const Strip& to, const Strip& from) {
    from_area_.push_back(copies_.list.size());
    copies_.Add({to.address, to.pitch, from.address, from.pitch, to.bytes, to.lines, 0});
  });
  if (op.hash == nullptr) return;
  hashed_area_.push_back(hashed_.list.size());
  hashed_.Add({at, op.from.bytes, 0, 0, 0}, op.hash);
}

void CudaBatch::ToHost(const CopyOp& op) {
  const uint64_t at = PlaceFor(reinterpret_cast<std::byte*>(op.to.address), op.to.bytes, &go_);
  EachPair({op.from.device, at, op.to.bytes}, op.from, [&](const Strip& to, const Strip& from) {
    to_area_.push_back(copies_.list.size());
    copies_.Add({to.address, to.pitch, from.address, from.pitch, to.bytes, to.lines, 0});
  });
}

uint64_t CudaBatch::MostBytes(const Memory& to, const Memory& from) {
  const bool strips = to.shape != nullptr || from.shape != nullptr;
  return (strips ? to.bytes : 0) + 2 * kAligned + MostMirrored(to, from) +
         kernels::HashScratchBytes(to.bytes / 1024 + 1, 1);
}

uint64_t CudaBatch::MostMirrored(const Memory& to, const Memory& from) {
  uint64_t strips = 1;
  for (const Memory* memory : {&to, &from}) {
    if (memory->shape == nullptr) continue;
    strips += (memory->bytes / memory->shape->unit_bytes() + 1) * memory->shape->planes.size();
  }
  return 2 * strips * sizeof(kernels::CopyStrip) + sizeof(kernels::HashRange) + sizeof(uint64_t);
}

void CudaBatch::Hash(const Memory& memory, uint64_t* hash) {
  if (memory.shape == nullptr) {
    hashed_.Add({memory.address, memory.bytes, 0, 0, 0}, hash);
    return;
  }
  const uint64_t begin = Align(area_bytes_);
  uint64_t at = begin;
  EachStrip(memory, nullptr, [&](const Strip& strip) {
    gathers_.Add({at, strip.bytes, strip.address, strip.pitch, strip.bytes, strip.lines, 0});
    at += strip.lines * strip.bytes;
  });
  area_bytes_ = at;
  hashed_area_.push_back(hashed_.list.size());
  hashed_.Add({begin, memory.bytes, 0, 0, 0}, hash);
}

bool CudaBatch::empty() const {
  return copies_.list.empty() && copied_.list.empty() && hashed_.list.empty();
}

CudaBatch::Layout CudaBatch::Lay() const {
  Layout out;
  out.gathers = BytesOf(copies_.list);
  out.copied = out.gathers + BytesOf(gathers_.list);
  out.hashed = out.copied + BytesOf(copied_.list);
  out.hashes = out.hashed + BytesOf(hashed_.list);
  out.mirrored = out.hashes + BytesOf(copied_.wanted) + BytesOf(hashed_.wanted);
  out.area = Align(out.mirrored);
  out.sums = Align(out.area + area_bytes_);
  out.end = out.sums + std::max(kernels::HashScratchBytes(copied_.units, copied_.list.size()),
                                kernels::HashScratchBytes(hashed_.units, hashed_.list.size()));
  return out;
}

void CudaBatch::Place(const Layout& at, CUdeviceptr scratch) {
  const uint64_t area = scratch + at.area;
  for (const size_t i : to_area_) copies_.list[i].to += area;
  for (const size_t i : from_area_) copies_.list[i].from += area;
  for (kernels::CopyStrip& strip : gathers_.list) strip.to += area;
  for (const size_t i : hashed_area_) hashed_.list[i].from += area;
  uint64_t hash = scratch + at.hashes;
  for (Ranges* ranges : {&copied_, &hashed_}) {
    for (kernels::HashRange& range : ranges->list) {
      range.hash = hash;
      hash += sizeof(uint64_t);
    }
  }
}

Result<std::shared_ptr<CudaAnswer>> CudaBatch::Put(const CudaDriver& driver,
                                                   const CudaKernels& kernels,
                                                   const CudaScratch::Lease& scratch,
                                                   CUstream stream) {
  const Layout at = Lay();
  const CUdeviceptr device = scratch.device();
  std::byte* const host = scratch.host();
  Place(at, device);
  const auto write = [&](uint64_t offset, const auto& list) {
    if (!list.empty()) std::memcpy(host + offset, list.data(), BytesOf(list));
  };
  write(at.copies, copies_.list);
  write(at.gathers, gathers_.list);
  write(at.copied, copied_.list);
  write(at.hashed, hashed_.list);
  TANGRAM_RETURN_IF_ERROR(driver.Check(
      driver.MemcpyAsync(device, reinterpret_cast<CUdeviceptr>(host), at.hashes, stream),
      "the lists of kernels"));
  for (const Run& run : come_) {
    TANGRAM_RETURN_IF_ERROR(
        driver.Check(driver.MemcpyAsync(device + at.area + run.area,
                                        reinterpret_cast<CUdeviceptr>(run.host), run.bytes, stream),
                     fmt::format("a copy of {} bytes from the host", run.bytes)));
  }
  for (const auto& [offset, strips] : {std::pair(at.copies, &copies_), {at.gathers, &gathers_}}) {
    if (strips->list.empty()) continue;
    TANGRAM_RETURN_IF_ERROR(
        kernels.CopyStrips({device + offset, strips->list.size(), strips->units, 0}, stream));
  }
  if (!copied_.list.empty()) {
    TANGRAM_RETURN_IF_ERROR(kernels.CopyAndHash(
        {device + at.copied, copied_.list.size(), copied_.units, device + at.sums}, stream));
  }
  if (!hashed_.list.empty()) {
    TANGRAM_RETURN_IF_ERROR(kernels.Hash(
        {device + at.hashed, hashed_.list.size(), hashed_.units, device + at.sums}, stream));
  }
  for (const Run& run : go_) {
    TANGRAM_RETURN_IF_ERROR(
        driver.Check(driver.MemcpyAsync(reinterpret_cast<CUdeviceptr>(run.host),
                                        device + at.area + run.area, run.bytes, stream),
                     fmt::format("a copy of {} bytes to the host", run.bytes)));
  }
  std::vector<uint64_t*> wanted = std::move(copied_.wanted);
  wanted.insert(wanted.end(), hashed_.wanted.begin(), hashed_.wanted.end());
  *this = {};
  if (wanted.empty()) return std::shared_ptr<CudaAnswer>();
  auto* const arriving = reinterpret_cast<uint64_t*>(host + at.hashes);
  TANGRAM_RETURN_IF_ERROR(
      driver.Check(driver.MemcpyAsync(reinterpret_cast<CUdeviceptr>(arriving), device + at.hashes,
                                      BytesOf(wanted), stream),
                   fmt::format("{} hashes", wanted.size())));
  return std::make_shared<CudaAnswer>(arriving, std::move(wanted));
}

}  // namespace tangram::device
