// How granules lie in slabs of every width, where slabs are row-major.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/device/memory.h"
#include "agent/layout/geometry.h"

namespace tangram::store {

class Shapes {
 public:
  explicit Shapes(const layout::GeometryView& geometry);

  // Of a slab of so many granules, at most an expert's; null: they lie one after another. Lives as
  // long as this.
  const device::Shape* Of(uint32_t granules) const {
    return granules < by_width_.size() ? &by_width_[granules] : nullptr;
  }

 private:
  std::vector<device::Shape> by_width_;  // empty: slabs are granule-major
};

}  // namespace tangram::store
