// Checkpoint::ReadRuns: an expert's gate, up and down as they lie in the file, to granules.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "agent/device/hash.h"
#include "agent/loader/checkpoint.h"
#include "agent/loader/transpose.h"

namespace tangram::loader {
namespace {

// Elements of a line of the cache, at most: blocks of so many rows give whole lines of columns.
constexpr uint64_t kLine = 64;

// A block of `down` before it is turned. A thread keeps it from one expert to the next: a new one
// would be pages that the kernel has to clear.
std::span<std::byte> Scratch(uint64_t bytes) {
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < bytes) scratch.resize(bytes);
  return std::span(scratch).first(bytes);
}

}  // namespace

struct Checkpoint::Granule {
  uint32_t index = 0;
  std::byte* to = nullptr;
  uint64_t* hash = nullptr;
  device::Hasher hasher;

  void Add(std::span<const std::byte> bytes) {
    if (hash != nullptr) hasher.Add(bytes);
  }
};

Status Checkpoint::ReadRuns(uint32_t layer, uint32_t expert,
                            std::span<const Target> targets) const {
  const v1::Geometry& g = geometry_->proto();
  const int32_t ordinal = geometry_->ordinal(layer);
  const auto refuse = [&](layout::Run run, const char* why) {
    return Status(Code::kInvalid,
                  fmt::format("checkpoint: granules {}..{} of layer {}, expert {} {}", run.start,
                              uint64_t{run.start} + run.count, layer, expert, why));
  };
  std::vector<Granule> granules;
  for (const Target& target : targets) {
    if (ordinal < 0 || expert >= g.experts() ||
        uint64_t{target.run.start} + target.run.count > geometry_->granules()) {
      return refuse(target.run, "are not there");
    }
    if (target.out.size() != target.run.count * g.granule_bytes() ||
        (!target.hashes.empty() && target.hashes.size() != target.run.count)) {
      return refuse(target.run, "have another size than their place");
    }
    for (uint32_t i = 0; i < target.run.count; ++i) {
      Granule& granule = granules.emplace_back();
      granule.index = target.run.start + i;
      granule.to = &target.out[i * g.granule_bytes()];
      granule.hash = target.hashes.empty() ? nullptr : &target.hashes[i];
    }
  }
  if (granules.empty()) return OkStatus();
  const auto before = [](const Granule& a, const Granule& b) { return a.index < b.index; };
  std::sort(granules.begin(), granules.end(), before);
  for (size_t i = 1; i < granules.size(); ++i) {
    if (granules[i - 1].index == granules[i].index) {
      return refuse({granules[i].index, 1}, "are wanted twice");
    }
  }
  const Expert& places = experts_[ordinal][expert];
  const uint64_t slice = g.granule_bytes() / 3;  // gate's, up's or down's part of a granule
  // What lies side by side in the file is read as one.
  for (size_t i = 0, end = 0; i < granules.size(); i = end) {
    for (end = i + 1;
         end < granules.size() && granules[end].index == granules[end - 1].index + 1;) {
      ++end;
    }
    const std::span<Granule> run(&granules[i], end - i);
    TANGRAM_RETURN_IF_ERROR(ReadRows(places.gate, 0, run));
    TANGRAM_RETURN_IF_ERROR(ReadRows(places.up, slice, run));
    TANGRAM_RETURN_IF_ERROR(ReadColumns(places.down, run));
  }
  for (const Granule& granule : granules) {
    if (granule.hash != nullptr) *granule.hash = granule.hasher.Value();
  }
  return OkStatus();
}

// Rows of gate or of up, to `at` of each granule, in blocks that go through the cache once for the
// copy and the hash.
Status Checkpoint::ReadRows(const Place& place, uint64_t at, std::span<Granule> granules) const {
  const uint64_t slice = geometry_->granule_bytes() / 3;
  const uint64_t bytes = granules.size() * slice, begin = granules[0].index * slice;
  std::vector<iovec> parts, read;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t end = std::min(bytes, done + kBlock);
    parts.clear();
    for (uint64_t from = done; from < end;) {
      const uint64_t within = from % slice, take = std::min(end - from, slice - within);
      parts.push_back({granules[from / slice].to + at + within, take});
      from += take;
    }
    read = parts;  // is used up
    TANGRAM_RETURN_IF_ERROR(place.file->ReadInto(place.info.begin + begin + done, read));
    for (const iovec& part : parts) {
      granules[done / slice].Add({static_cast<const std::byte*>(part.iov_base), part.iov_len});
      done += part.iov_len;
    }
  }
  return OkStatus();
}

// Columns of down, [H, I], as rows. All of its columns are one range of the file; some of them are
// one short range in each row.
Status Checkpoint::ReadColumns(const Place& down, std::span<Granule> granules) const {
  const v1::Geometry& g = geometry_->proto();
  const uint64_t element = ElementBytes(g.dtype()), hidden = g.hidden();
  const uint64_t slice = geometry_->granule_bytes() / 3, narrow = g.granule_rows() * element;
  const uint64_t pitch = g.moe_inner() * element, width = granules.size() * narrow;
  const uint64_t rows = std::max(kLine, kBlock / width / kLine * kLine);
  const std::span<std::byte> block = Scratch(rows * width);
  for (uint64_t h = 0; h < hidden; h += rows) {
    const uint64_t count = std::min(rows, hidden - h);
    const uint64_t from = down.info.begin + h * pitch + granules[0].index * narrow;
    if (width == pitch) {
      TANGRAM_RETURN_IF_ERROR(down.file->Read(from, block.first(count * pitch)));
    } else {
      for (uint64_t row = 0; row < count; ++row) {
        TANGRAM_RETURN_IF_ERROR(
            down.file->Read(from + row * pitch, block.subspan(row * width, width)));
      }
    }
    for (size_t i = 0; i < granules.size(); ++i) {
      Transpose({&block[i * narrow], width}, count, g.granule_rows(), element,
                {granules[i].to + 2 * slice + h * element, hidden * element});
    }
  }
  for (Granule& granule : granules) granule.Add({granule.to + 2 * slice, slice});
  return OkStatus();
}

}  // namespace tangram::loader
