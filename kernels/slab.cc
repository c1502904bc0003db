#include "kernels/slab.h"

namespace tangram::kernels {
namespace {

struct Side {
  uint64_t address = 0, pitch = 0;
};

// The place of a section of granule `number`; `before`: bytes of the sections before it in each
// granule.
Side SideOf(const Slab& slab, uint64_t number, const Section& section, uint64_t before,
            uint64_t granule_bytes) {
  if (!slab.row_major) return {slab.address + number * granule_bytes + before, section.bytes};
  return {slab.address + slab.granules * before + number * section.bytes,
          slab.granules * section.bytes};
}

}  // namespace

void AppendStrips(const Slab& to, uint64_t to_first, const Slab& from, uint64_t from_first,
                  uint64_t count, std::span<const Section> sections,
                  std::vector<CopyStrip>* strips) {
  uint64_t granule_bytes = 0;
  for (const Section& section : sections) granule_bytes += section.lines * section.bytes;
  if (!to.row_major && !from.row_major) {
    // Granules follow one another on both sides.
    const uint64_t bytes = count * granule_bytes;
    strips->push_back({to.address + to_first * granule_bytes, bytes,
                       from.address + from_first * granule_bytes, bytes, bytes, 1, 0});
    return;
  }
  // Granules that are adjacent in a line on both sides are one strip.
  const uint64_t together = to.row_major && from.row_major ? count : 1;
  for (uint64_t g = 0; g < count; g += together) {
    uint64_t before = 0;
    for (const Section& section : sections) {
      const Side target = SideOf(to, to_first + g, section, before, granule_bytes);
      const Side source = SideOf(from, from_first + g, section, before, granule_bytes);
      strips->push_back({target.address, target.pitch, source.address, source.pitch,
                         together * section.bytes, section.lines, 0});
      before += section.lines * section.bytes;
    }
  }
}

}  // namespace tangram::kernels
