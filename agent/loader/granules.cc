// Checkpoint::ReadRuns: an expert's tensors as they lie in the file, to granules and the tail.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
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
        (!target.hashes.empty() && target.hashes.size() != target.run.count) ||
        (!target.tail.empty() && target.tail.size() != geometry_->tail_bytes())) {
      return refuse(target.run, "have another size than their place");
    }
    for (uint32_t i = 0; i < target.run.count; ++i) {
      Granule& granule = granules.emplace_back();
      granule.index = target.run.start + i;
      granule.to = &target.out[i * g.granule_bytes()];
      granule.hash = target.hashes.empty() ? nullptr : &target.hashes[i];
    }
  }
  const auto before = [](const Granule& a, const Granule& b) { return a.index < b.index; };
  std::sort(granules.begin(), granules.end(), before);
  for (size_t i = 1; i < granules.size(); ++i) {
    if (granules[i - 1].index == granules[i].index) {
      return refuse({granules[i].index, 1}, "are wanted twice");
    }
  }
  if (targets.empty()) return OkStatus();
  const auto part = [&](size_t tensor) {
    const std::vector<Part>& layer_parts = parts_[ordinal];
    if (!style_->stacked) return layer_parts[expert * style_->tensors.size() + tensor];
    Part out = layer_parts[tensor];
    out.begin += expert * out.stride;
    return out;
  };
  // What lies side by side in the file is read as one.
  for (size_t i = 0, end = 0; i < granules.size(); i = end) {
    for (end = i + 1;
         end < granules.size() && granules[end].index == granules[end - 1].index + 1;) {
      ++end;
    }
    const std::span<Granule> run(&granules[i], end - i);
    for (size_t t = 0; t < sections_.size(); ++t) {
      TANGRAM_RETURN_IF_ERROR(sections_[t].columns ? ReadColumns(sections_[t], part(t), run)
                                                   : ReadRows(sections_[t], part(t), run));
    }
  }
  if (geometry_->tail_bytes() > 0) {
    TANGRAM_RETURN_IF_ERROR(ReadTail(part(sections_.size()), targets));
  }
  for (const Granule& granule : granules) {
    if (granule.hash != nullptr) *granule.hash = granule.hasher.Value();
  }
  return OkStatus();
}

// In blocks that go through the cache once for the copy and the hash.
Status Checkpoint::ReadRows(const Section& section, const Part& part,
                            std::span<Granule> granules) const {
  const uint64_t slice = section.bytes();
  const uint64_t bytes = granules.size() * slice, begin = granules[0].index * slice;
  std::vector<iovec> parts, read;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t end = std::min(bytes, done + kBlock);
    parts.clear();
    for (uint64_t from = done; from < end;) {
      const uint64_t within = from % slice, take = std::min(end - from, slice - within);
      parts.push_back({granules[from / slice].to + section.at + within, take});
      from += take;
    }
    read = parts;  // is used up
    TANGRAM_RETURN_IF_ERROR(part.file->ReadInto(part.begin + begin + done, read));
    for (const iovec& piece : parts) {
      granules[done / slice].Add({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
      done += piece.iov_len;
    }
  }
  return OkStatus();
}

// Columns, as rows, or (row-major) as they are. All columns are one range of the file; some of them
// are one short range in each row.
Status Checkpoint::ReadColumns(const Section& section, const Part& part,
                               std::span<Granule> granules) const {
  const uint64_t element = section.element, narrow = section.narrow();
  const uint64_t pitch = section.inner * element, width = granules.size() * narrow;
  const uint64_t rows = std::min(section.across, std::max(kLine, kBlock / width / kLine * kLine));
  const std::span<std::byte> block = Scratch(rows * width);
  for (uint64_t r = 0; r < section.across; r += rows) {
    const uint64_t count = std::min(rows, section.across - r);
    const uint64_t from = part.begin + r * pitch + granules[0].index * narrow;
    if (width == pitch) {
      TANGRAM_RETURN_IF_ERROR(part.file->Read(from, block.first(count * pitch)));
    } else {
      for (uint64_t row = 0; row < count; ++row) {
        TANGRAM_RETURN_IF_ERROR(
            part.file->Read(from + row * pitch, block.subspan(row * width, width)));
      }
    }
    for (size_t i = 0; i < granules.size(); ++i) {
      if (geometry_->row_major()) {
        std::byte* const to = granules[i].to + section.at + r * narrow;
        for (uint64_t row = 0; row < count; ++row) {
          std::memcpy(to + row * narrow, &block[row * width + i * narrow], narrow);
        }
        continue;
      }
      Transpose({&block[i * narrow], width}, count, section.along, element,
                {granules[i].to + section.at + r * element, section.across * element, section.ways,
                 section.bytes() / section.ways});
    }
  }
  for (Granule& granule : granules) granule.Add({granule.to + section.at, section.bytes()});
  return OkStatus();
}

Status Checkpoint::ReadTail(const Part& part, std::span<const Target> targets) const {
  const Target* first = nullptr;  // whose place the file is read to
  uint64_t hash = 0;
  for (const Target& target : targets) {
    if (target.tail.empty()) continue;
    if (first == nullptr) {
      first = &target;
      TANGRAM_RETURN_IF_ERROR(part.file->Read(part.begin, target.tail));
      hash = device::HashOf(target.tail);
    } else {
      std::copy(first->tail.begin(), first->tail.end(), target.tail.begin());
    }
    if (target.tail_hash != nullptr) *target.tail_hash = hash;
  }
  return OkStatus();
}

}  // namespace tangram::loader
