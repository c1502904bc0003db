#include "agent/store/shapes.h"

namespace tangram::store {

Shapes::Shapes(const layout::GeometryView& geometry) {
  if (!geometry.row_major()) return;
  device::Shape shape;
  for (const v1::Section& section : geometry.proto().sections()) {
    shape.planes.push_back({section.lines(), section.bytes()});
  }
  for (; shape.units <= geometry.granules(); ++shape.units) by_width_.push_back(shape);
}

}  // namespace tangram::store
