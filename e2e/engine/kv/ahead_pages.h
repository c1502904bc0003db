// Pages with copies of what other ranks hold, made ahead of a flip. They are free to whoever needs
// them: a copy is a saving, and goes when a block of the layout in force wants its pages.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/arena.h"
#include "agent/kv/plan.h"

namespace tangram::engine {

class AheadPages {
 public:
  // Pages of (home, block) as the layout in force names them; ids of a home are used once in an
  // epoch, so a name is one content for good, once it is full. Taken from the arena; empty: it has
  // too few, and nothing was taken. Being written until Came.
  std::vector<kv::Strip> Take(device::Arena* arena, uint32_t home, uint32_t block,
                              const kv::Strip& lane, uint32_t tokens);
  // All that was being written is here, or is nothing.
  void Came(device::Arena* arena, bool here);
  // Gives the copies of a block back; those being written when they came.
  void Drop(device::Arena* arena, uint32_t home, uint32_t block);
  // Gives back what was taken for a block since Came: nothing will be written to it.
  void Forget(device::Arena* arena, uint32_t home, uint32_t block);
  // All goes; what is being written when it came.
  void DropAll(device::Arena* arena);
  // What is being written in the pages of another, which is over: those stay away from the arena
  // until they came.
  Status TakeOver(device::Arena* arena, const AheadPages& before);
  // Gives back all that is not being written and for which `stays` is false.
  template <typename Stays>
  void DropUnless(device::Arena* arena, Stays&& stays) {
    for (auto it = copies_.begin(); it != copies_.end();) {
      const Copy& copy = it->second;
      if (copy.state == State::kHere && !stays(copy.page, copy.layers)) {
        Give(arena, copy);
        it = copies_.erase(it);
      } else {
        ++it;
      }
    }
  }

  // Whether something is being written.
  bool writing() const { return writing_ > 0; }
  uint32_t pages() const { return pages_; }
  // As extents of pages.
  std::vector<device::Extent> Extents() const;

  struct Found {
    uint32_t page = 0;    // of `layer`, the others follow; nothing: not here
    uint32_t layers = 0;  // that lie so, or that are not here
    bool here = false;
  };
  // What is here of layers [layer, end) of a KV head of a block of which `tokens` are filled: the
  // first run of it.
  Found Find(uint32_t home, uint32_t block, uint32_t kv_head, uint32_t layer, uint32_t end,
             uint32_t tokens) const;

 private:
  enum class State { kWritten, kGone, kHere };  // kGone: nobody wants it once it was written
  struct Copy {
    uint32_t page = 0, layers = 0, tokens = 0;
    State state = State::kWritten;
  };
  using Name = std::pair<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>>;
  void Give(device::Arena* arena, const Copy& copy);

  std::multimap<Name, Copy> copies_;  // by ((home, block), (KV head, layer))
  uint32_t pages_ = 0, writing_ = 0;
};

}  // namespace tangram::engine
