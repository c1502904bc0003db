// Layout of granules in row-major slabs of every width.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/device/memory.h"
#include "agent/layout/geometry.h"

namespace tangram::store {

class Shapes {
 public:
  explicit Shapes(const layout::GeometryView& geometry);

  // Shape of a slab of `granules` granules, at most an expert's; null: they are consecutive. Lives
  // as long as this.
  const device::Shape* Of(uint32_t granules) const {
    return granules < by_width_.size() ? &by_width_[granules] : nullptr;
  }

 private:
  std::vector<device::Shape> by_width_;  // empty: slabs are granule-major
};

}  // namespace tangram::store
