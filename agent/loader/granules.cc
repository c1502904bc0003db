// Checkpoint::ReadRuns: reads an expert's tensors from the file into granules and the tail.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "agent/device/hash.h"
#include "agent/device/runs.h"
#include "agent/loader/checkpoint.h"
#include "agent/loader/transpose.h"

namespace tangram::loader {
namespace {

// Maximum elements per cache line: blocks of this many rows give whole cache lines of columns.
constexpr uint64_t kLine = 64;

// Each thread keeps its scratch from one expert to the next: the kernel would have to clear the
// pages of a new one.
std::span<std::byte> Sized(std::vector<std::byte>* scratch, uint64_t bytes) {
  if (scratch->size() < bytes) scratch->resize(bytes);
  return std::span(*scratch).first(bytes);
}

}  // namespace

// The destination: granule `place` of a row-major slab of `units`, or a granule alone.
struct Checkpoint::Granule {
  uint32_t index = 0;
  std::byte* slab = nullptr;
  uint64_t units = 1, place = 0;
  uint64_t* hash = nullptr;
  device::Hasher hasher;

  // Its first line of the section; each line has `line` bytes per granule.
  std::byte* To(const Section& section, uint64_t line) const {
    return slab + units * section.at + place * line;
  }
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
      return refuse(target.run, "do not exist");
    }
    const uint64_t units = target.shape != nullptr ? target.shape->units : target.run.count;
    if (target.out.size() != units * g.granule_bytes() || target.unit + target.run.count > units ||
        (!target.hashes.empty() && target.hashes.size() != target.run.count) ||
        (!target.tail.empty() && target.tail.size() != geometry_->tail_bytes())) {
      return refuse(target.run, "differ in size from their target");
    }
    for (uint32_t i = 0; i < target.run.count; ++i) {
      Granule& granule = granules.emplace_back();
      granule.index = target.run.start + i;
      granule.slab = target.out.data();
      if (target.shape == nullptr) {
        granule.slab += i * g.granule_bytes();
      } else {
        granule.units = units;
        granule.place = target.unit + i;
      }
      granule.hash = target.hashes.empty() ? nullptr : &target.hashes[i];
    }
  }
  const auto before = [](const Granule& a, const Granule& b) { return a.index < b.index; };
  std::sort(granules.begin(), granules.end(), before);
  for (size_t i = 1; i < granules.size(); ++i) {
    if (granules[i - 1].index == granules[i].index) {
      return refuse({granules[i].index, 1}, "are requested twice");
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
  // Adjacent granules of the file are read together.
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

// Reads in blocks, so that copy and hash use bytes in the cache.
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
      parts.push_back({granules[from / slice].To(section, slice) + within, take});
      from += take;
    }
    read = parts;  // readv consumes its parts
    TANGRAM_RETURN_IF_ERROR(part.file->ReadInto(part.begin + begin + done, read));
    for (const iovec& piece : parts) {
      granules[done / slice].Add({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
      done += piece.iov_len;
    }
  }
  return OkStatus();
}

// All columns are one range of the file; a part of them is one short range per row.
Status Checkpoint::ReadBlock(const Section& section, const Part& part, uint64_t row, uint64_t rows,
                             uint32_t granule, uint64_t width, std::span<std::byte> out) {
  const uint64_t pitch = section.inner * section.element;
  const uint64_t from = part.begin + row * pitch + granule * section.narrow();
  if (width == pitch) return part.file->Read(from, out);
  for (uint64_t r = 0; r < rows; ++r) {
    TANGRAM_RETURN_IF_ERROR(part.file->Read(from + r * pitch, out.subspan(r * width, width)));
  }
  return OkStatus();
}

// Transposes columns to rows.
void Checkpoint::Turn(const Section& section, uint64_t row, uint64_t rows,
                      std::span<const std::byte> block, std::span<Granule> granules) {
  const uint64_t element = section.element, narrow = section.narrow();
  const uint64_t width = granules.size() * narrow;
  for (size_t i = 0; i < granules.size(); ++i) {
    Transpose({&block[i * narrow], width}, rows, section.along, element,
              {granules[i].slab + section.at + row * element, section.across * element,
               section.ways, section.bytes() / section.ways});
  }
}

// Copies columns as they are, and hashes them while they are in the cache.
void Checkpoint::Cut(const Section& section, uint64_t row, uint64_t rows,
                     std::span<const std::byte> block, std::span<Granule> granules) {
  thread_local std::vector<std::byte> lines;
  const uint64_t narrow = section.narrow(), width = granules.size() * narrow;
  const device::Shape shape{{{rows, narrow}}, granules.size()};
  for (size_t i = 0, end = 0; i < granules.size(); i = end) {
    const Granule& first = granules[i];
    for (end = i + 1; end < granules.size() && granules[end].slab == first.slab &&
                      granules[end].place == first.place + (end - i);) {
      ++end;
    }
    const uint64_t pitch = first.units * narrow;
    std::byte* const to = first.To(section, narrow) + row * pitch;
    if (to == block.data()) continue;  // read in place
    const uint64_t bytes = (end - i) * narrow;
    CopyRows({&block[i * narrow], width}, rows, bytes, {to, pitch});
  }
  device::Memory all{nullptr, reinterpret_cast<uint64_t>(block.data()), rows * narrow, &shape, 0};
  for (Granule& granule : granules) {
    if (granule.hash != nullptr) {
      const std::span<std::byte> in_order = Sized(&lines, rows * narrow);
      device::Gather(all, in_order);
      granule.Add(in_order);
    }
    ++all.unit;
  }
}

Status Checkpoint::ReadColumns(const Section& section, const Part& part,
                               std::span<Granule> granules) const {
  thread_local std::vector<std::byte> scratch;
  const uint64_t width = granules.size() * section.narrow();
  const uint64_t rows = std::min(section.across, std::max(kLine, kBlock / width / kLine * kLine));
  // A slab of exactly these granules has the order of the file, if they are all columns.
  const Granule& first = granules.front();
  const bool as_in_file = geometry_->row_major() && width == section.inner * section.element &&
                          first.units == granules.size() && first.slab == granules.back().slab;
  for (uint64_t row = 0; row < section.across; row += rows) {
    const uint64_t count = std::min(rows, section.across - row);
    const std::span<std::byte> block =
        as_in_file ? std::span(first.To(section, section.narrow()) + row * width, count * width)
                   : Sized(&scratch, rows * width).first(count * width);
    TANGRAM_RETURN_IF_ERROR(ReadBlock(section, part, row, count, first.index, width, block));
    (geometry_->row_major() ? Cut : Turn)(section, row, count, block, granules);
  }
  if (geometry_->row_major()) return OkStatus();
  for (Granule& granule : granules) granule.Add({granule.slab + section.at, section.bytes()});
  return OkStatus();
}

Status Checkpoint::ReadTail(const Part& part, std::span<const Target> targets) const {
  const Target* first = nullptr;  // the target that the file is read into
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
