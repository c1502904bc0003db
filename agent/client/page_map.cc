#include "agent/client/page_map.h"

#include <iterator>

namespace tangram {

// Makes `place` the border of a run.
void PageMap::Cut(uint64_t place) {
  auto it = runs_.upper_bound(place);
  if (it == runs_.begin()) return;
  --it;
  const uint64_t head = place - it->first;
  if (head == 0 || head >= it->second.bytes) return;
  Run tail = it->second;
  tail.bytes -= head;
  tail.fd_offset += head;
  it->second.bytes = head;
  runs_.emplace(place, tail);
}

void PageMap::Unmap(uint64_t place, uint64_t bytes) {
  if (bytes == 0) return;
  Cut(place);
  Cut(place + bytes);
  runs_.erase(runs_.lower_bound(place), runs_.lower_bound(place + bytes));
}

void PageMap::Map(uint64_t place, const google::protobuf::RepeatedPtrField<v1::Extent>& extents) {
  for (const v1::Extent& extent : extents) {
    Unmap(place, extent.length());
    runs_[place] = {extent.length(), extent.fd_index(), extent.offset()};
    place += extent.length();
  }
}

}  // namespace tangram
