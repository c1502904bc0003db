#include "agent/engine/rows/rows.h"

#include <string>
#include <utility>
#include <vector>

namespace tangram::engine {

// No timeout here: the mesh detects unresponsive peers, and an incomplete step is discarded whole.
ExpertRows::ExpertRows(const dispatch::Format& format)
    : exchange_(format,
                {.timeout = std::nullopt, .packed_capacity = 0, .strict = true, .by_rows = true}) {}

void ExpertRows::Enter(std::shared_ptr<const dispatch::Routes> routes) {
  routes_ = std::move(routes);
  open_ = false;
}

Status ExpertRows::Dispatch(Communicator& comm, uint64_t step, uint64_t sequence,
                            uint32_t moe_ordinal, const dispatch::Rows& rows,
                            std::span<const uint8_t> active) {
  open_ = false;
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < comm.size(); ++r)
    if (active.size() != comm.size() || active[r] != 0) ranks.push_back(r);
  links_.Begin(&comm, step, sequence, moe_ordinal, std::move(ranks));
  // The mesh's tags identify the pair and its step, because ranks that abandoned different steps
  // have no common count.
  exchange_.Enter(comm.epoch(), &links_, routes_);
  const auto sent = exchange_.Send(moe_ordinal, rows, active);
  if (!sent.ok()) return sent.status();
  TANGRAM_RETURN_IF_ERROR(Told(exchange_.Receive(*sent), dispatch::Lane::kDispatch));
  handle_ = *sent;
  arrived_ = exchange_.arrived(handle_);
  open_ = true;
  return OkStatus();
}

Status ExpertRows::CombineAny(const void* partials, void* y) {
  if (!std::exchange(open_, false)) {
    return {Code::kInvalid, "combine called without a dispatch before it"};
  }
  TANGRAM_RETURN_IF_ERROR(exchange_.SendBack(handle_, partials));
  return Told(exchange_.Finish(handle_, y), dispatch::Lane::kCombine);
}

// The mesh records the ranks that it detects; only this library checks the received messages.
Status ExpertRows::Told(Status done, dispatch::Lane lane) {
  const auto active = exchange_.active_ranks();
  for (uint32_t r = 0; !done.ok() && r < active.size(); ++r)
    if (active[r] == 0 && exchange_.found(r).cause == TG_HOSTILE) links_.TellHostile(r, lane);
  return done;
}

Status ExpertRows::Combine(const float* partials, float* y) { return CombineAny(partials, y); }

Status ExpertRows::Combine(const int64_t* partials, int64_t* y) { return CombineAny(partials, y); }

}  // namespace tangram::engine
