// Distributes the work of a launch. Items (ranges, strips, moves) of any size are cut into units
// with consecutive numbers, and every block gets a run of consecutive units. So the blocks together
// work in many places of the list (on as many peers as it has), however few blocks there are. A
// block searches its first item once and walks on from there.
#pragma once

#include "kernels/memory.h"

namespace tangram::kernels {

struct Share {
  uint64_t begin = 0, end = 0;
};

// The units of part `part` of `parts`; shares differ by at most one.
TANGRAM_DEVICE Share ShareOf(uint64_t units, uint32_t part, uint32_t parts) {
  const uint64_t least = units / parts, more = units % parts;
  const uint64_t begin = least * part + Smaller<uint64_t>(part, more);
  return {begin, begin + least + (part < more ? 1 : 0)};
}

// Finds the item of a unit. An Item has `first`, the number of its first unit: the units of all
// items before it. It may have no units.
template <typename Item>
class Cursor {
 public:
  // `list`: the address of `count` items that have `units` together.
  TANGRAM_DEVICE Cursor(uint64_t list, uint64_t count, uint64_t units)
      : list_(list), count_(count), units_(units) {}

  // The item of a unit that is less than `units`.
  template <typename Memory>
  TANGRAM_DEVICE const Item& At(Memory& memory, uint64_t unit) {
    if (unit >= begin_ && unit < end_) return item_;
    // The last item that begins at or before the unit; items without units after it begin later.
    uint64_t low = unit >= end_ ? next_ : 0, high = count_;
    while (high - low > 1) {
      const uint64_t middle = low + (high - low) / 2;
      (FirstOf(memory, middle) <= unit ? low : high) = middle;
    }
    item_ = memory.template Read<Item>(list_ + low * sizeof(Item));
    begin_ = item_.first;
    next_ = low + 1 < count_ ? low + 1 : low;
    end_ = low + 1 < count_ ? FirstOf(memory, low + 1) : units_;
    number_ = low;
    return item_;
  }
  // The index of the item found last.
  TANGRAM_DEVICE uint64_t number() const { return number_; }

 private:
  template <typename Memory>
  TANGRAM_DEVICE uint64_t FirstOf(Memory& memory, uint64_t index) {
    return memory.template Read<Item>(list_ + index * sizeof(Item)).first;
  }

  uint64_t list_, count_, units_;
  uint64_t begin_ = 0, end_ = 0, next_ = 0, number_ = 0;
  Item item_ = {};
};

}  // namespace tangram::kernels
