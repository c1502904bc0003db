// Pages with copies of other ranks' blocks, made ahead of a flip. These pages count as free: a copy
// only saves time, and is discarded when a block of the active layout needs its pages.
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
  // Takes pages from the arena for a copy of (home, block), named as in the active layout. An id of
  // a home is used once per epoch, so the name of a full block identifies its content. Empty: the
  // arena has too few pages, and none was taken. The pages are being written until Came.
  std::vector<kv::Strip> Take(device::Arena* arena, uint32_t home, uint32_t block,
                              const kv::Strip& lane, uint32_t tokens);
  // All writes ended: the pages that were being written have their content (`here`), or are freed.
  void Came(device::Arena* arena, bool here);
  // Frees the copies of a block; those being written are freed in Came.
  void Drop(device::Arena* arena, uint32_t home, uint32_t block);
  // Frees the pages taken for a block since Came: nothing will be written to them.
  void Forget(device::Arena* arena, uint32_t home, uint32_t block);
  // Frees all copies; those being written are freed in Came.
  void DropAll(device::Arena* arena);
  // Takes over the pages that are being written in `before`, which this object replaces. They stay
  // claimed in the arena until Came.
  Status TakeOver(device::Arena* arena, const AheadPages& before);
  // Frees all copies that are not being written and for which `stays` is false.
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

  // Whether copies are being written.
  bool writing() const { return writing_ > 0; }
  uint32_t pages() const { return pages_; }
  // All pages, as extents in units of pages.
  std::vector<device::Extent> Extents() const;

  struct Found {
    uint32_t page = 0;    // of `layer`, followed by the other layers; unused if not here
    uint32_t layers = 0;  // stored consecutively, or missing
    bool here = false;
  };
  // First run of consecutive layers in [layer, end) that is here, or that is missing, of a KV head
  // of a block with `tokens` filled tokens.
  Found Find(uint32_t home, uint32_t block, uint32_t kv_head, uint32_t layer, uint32_t end,
             uint32_t tokens) const;

 private:
  enum class State { kWritten, kGone, kHere };  // kGone: discarded, freed in Came
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
