#include "agent/kv/sources.h"

#include <algorithm>
#include <set>

#include "agent/kv/placement.h"
#include "agent/kv/sides.h"

namespace tangram::kv {

std::vector<uint32_t> LikelySources(const Input& in, uint32_t rank) {
  const std::vector<Span> spans = SpansOf(in);
  const int32_t self = OldOfNew(in)[rank];
  std::set<uint32_t> out;
  for (uint32_t home = 0; home < in.ranks.size(); ++home) {
    const int32_t stay = in.new_of_old[home];
    const bool stays = stay >= 0 && std::all_of(spans.begin(), spans.end(), [&](const Span& span) {
                         return span.after.InGroup(static_cast<uint32_t>(stay));
                       });
    for (const Span& span : spans) {
      // A home that goes may be followed by any: then what the rank holds of its own group's.
      const Heads needs = span.after.Of(stays ? static_cast<uint32_t>(stay) : rank, rank);
      const Heads has = self < 0 ? Heads{0, 0} : span.before.Of(home, static_cast<uint32_t>(self));
      for (uint32_t head = needs.first; head < needs.second; ++head) {
        if (Has(has, head)) continue;
        const auto holders = span.before.Holders(home, head);
        out.insert(holders.begin(), holders.end());
      }
    }
  }
  if (self >= 0) out.erase(static_cast<uint32_t>(self));
  return {out.begin(), out.end()};
}

}  // namespace tangram::kv
