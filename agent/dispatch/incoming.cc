// Incoming data of a pair: rows for the experts here, and sums for this rank's rows.
#include <algorithm>
#include <cstring>
#include <string>

#include "agent/dispatch/exchange.h"

namespace tangram::dispatch {
namespace {

// More packed bytes than this are written past the caches.
constexpr size_t kStreamed = 8 << 20;

}  // namespace

Exchange::Pair* Exchange::Open(uint32_t rank, Link& link, Lane lane) {
  Front& front = fronts_[rank][static_cast<size_t>(lane)];
  if (front.open) return &pairs_[front.head.pair % 2];
  while (active_[rank] != 0) {
    const std::span<const uint8_t> slot = link.Front(lane);
    if (slot.empty()) return nullptr;
    const Result<SlotHead> head = HeadOf(slot);
    if (!head.ok()) {
      // The head's pair is unreadable, so the rank is reported as missed in the oldest open pair.
      const auto pairs = InOrder();
      Gone(rank, head.status(), TG_HOSTILE, pairs[0] != nullptr ? pairs[0] : pairs[1], lane);
      return nullptr;
    }
    if (head->epoch > epoch_ || (head->epoch == epoch_ && head->pair >= next_)) return nullptr;
    Pair& pair = pairs_[head->pair % 2];
    if (head->epoch < epoch_ || pair.stage == Stage::kFree || pair.number != head->pair) {
      link.Pop(lane);  // of an ended pair
      continue;
    }
    if (lane == Lane::kCombine && pair.stage != Stage::kCombining) return nullptr;
    if (const Status told = Told(pair, rank, slot, *head); !told.ok()) {
      Gone(rank, told, TG_HOSTILE, &pair, lane);
      return nullptr;
    }
    front = {true, 0, *head, slot.data()};
    ++moved_[rank];
    return &pair;
  }
  return nullptr;
}

Status Exchange::Told(Pair& pair, uint32_t rank, std::span<const uint8_t> slot,
                      const SlotHead& head) {
  const auto lane = static_cast<Lane>(head.lane);
  const auto bad = [&](const std::string& what) {
    return Status{Code::kInternal, "a slot of pair " + std::to_string(head.pair) + ": " + what};
  };
  if (pair.part[rank] == 0) return bad("the rank takes no part in it");
  Progress& came = lane == Lane::kDispatch ? pair.in[rank].came : pair.back[rank].came;
  TANGRAM_RETURN_IF_ERROR(Follows(format_, head, slot.size(), came));
  const uint8_t* told = slot.data() + MetasAt();
  const size_t meta = format_.meta_bytes(lane), top_k = format_.top_k;
  if (lane == Lane::kCombine) {
    const size_t asked = pair.plan.to[rank].rows.size();
    if (head.total != asked || head.rows != head.metas)
      return bad("it answers " + std::to_string(head.total) + " rows, and was asked " +
                 std::to_string(asked));
    auto& lacking = pair.back[rank].lacking;
    lacking.resize(came.metas + head.metas);
    if (head.metas > 0) std::memcpy(lacking.data() + came.metas, told, head.metas * meta);
  } else {
    // Otherwise memory would be allocated for rows that may never arrive.
    if (options_.by_rows && head.rows != head.total) return bad("it is not whole");
    Incoming& in = pair.in[rank];
    const size_t before = came.metas * top_k;
    in.choices.resize(before + head.metas * top_k);
    in.weights.resize(before + head.metas * top_k);
    for (size_t i = 0; i < head.metas; ++i, told += meta) {
      std::memcpy(in.choices.data() + before + i * top_k, told, top_k * sizeof(int32_t));
      std::memcpy(in.weights.data() + before + i * top_k, told + top_k * sizeof(int32_t),
                  top_k * sizeof(float));
    }
    for (const int32_t choice : std::span(in.choices).subspan(before)) {
      if (choice == kNone) continue;
      if (choice < 0 || static_cast<uint32_t>(choice) >= pair.layer.choices() ||
          pair.layer.PiecesOf(static_cast<uint32_t>(choice)).empty())
        return bad("choice " + std::to_string(choice) + " of " +
                   std::to_string(pair.layer.choices()) + " has no piece here");
    }
  }
  came.begun = true;
  came.total = head.total;
  came.metas += head.metas;
  return OkStatus();
}

void Exchange::Take(uint32_t rank, Link& link, Lane lane) {
  Front& front = fronts_[rank][static_cast<size_t>(lane)];
  while (Pair* const pair = Open(rank, link, lane)) {
    if (lane == Lane::kCombine) {
      if (front.head.rows > 0) return;  // Merge takes them
    } else {
      if (front.head.rows > 0 && !pair->placed) return;
      Progress& came = pair->in[rank].came;
      const uint8_t* row = front.slot + RowsAt(front.head.metas, format_.meta_bytes(lane));
      for (uint32_t i = 0; i < front.head.rows; ++i, row += format_.stride(lane))
        PlaceRow(*pair, rank, came.rows++, row);
    }
    front.open = false;
    link.Pop(lane);
  }
}

void Exchange::TakeOwn(Pair& pair) {
  Incoming& in = pair.in[links_->rank()];
  const Outgoing& own = pair.plan.to[links_->rank()];
  const size_t top_k = format_.top_k;
  in.choices = own.choices;
  in.weights.resize(own.choices.size());
  for (size_t i = 0; i < own.rows.size(); ++i)
    std::copy_n(pair.rows.weights + own.rows[i] * top_k, top_k, in.weights.data() + i * top_k);
  const auto rows = static_cast<uint32_t>(own.rows.size());
  in.came = {true, rows, rows, 0};
}

bool Exchange::MayPlace(const Pair& pair) const {
  for (uint32_t r = 0; r < links_->ranks(); ++r) {
    const Progress& came = pair.in[r].came;
    if (InPart(pair, r) && (!came.begun || came.metas != came.total)) return false;
  }
  return true;
}

void Exchange::PlaceByRows(Pair& pair) {
  pair.total = 0;
  for (Incoming& in : pair.in) {
    in.first = pair.total;
    pair.total += in.came.total;
    pair.all_choices.insert(pair.all_choices.end(), in.choices.begin(), in.choices.end());
    pair.all_weights.insert(pair.all_weights.end(), in.weights.begin(), in.weights.end());
    for (const int32_t choice : in.choices) {
      if (choice == kNone) continue;
      ++pair.by_choice[choice];
      ++pair.executed[pair.layer.PiecesOf(static_cast<uint32_t>(choice)).front().expert];
    }
  }
  pair.x.Get(pair.total * format_.hidden * sizeof(float));
}

void Exchange::PlacePacked(Pair& pair) {
  std::vector<int32_t> local(pair.layer.choices(), -1);
  for (uint32_t c = 0; c < pair.layer.choices(); ++c) {
    if (pair.layer.PiecesOf(c).empty()) continue;
    local[c] = static_cast<int32_t>(pair.choices.size());
    pair.choices.push_back(c);
  }
  pair.counts.assign(pair.choices.size(), 0);
  uint64_t wanted = 0;
  pair.total = 0;
  for (Incoming& in : pair.in) {
    in.at.assign(in.choices.size(), -1);
    for (size_t i = 0; i < in.choices.size(); ++i) {
      const int32_t choice = in.choices[i];
      if (choice == kNone) continue;
      ++wanted;
      if (options_.packed_capacity != 0 && pair.total == options_.packed_capacity) continue;
      ++pair.total;
      in.at[i] = pair.counts[local[choice]]++;
      ++pair.by_choice[choice];
      ++pair.executed[pair.layer.PiecesOf(static_cast<uint32_t>(choice)).front().expert];
    }
  }
  if (wanted > pair.total) pair.overflow = Overflow{wanted, options_.packed_capacity};
  std::vector<int64_t> first(pair.counts.size(), 0);
  for (size_t l = 1; l < first.size(); ++l) first[l] = first[l - 1] + pair.counts[l - 1];
  for (Incoming& in : pair.in)
    for (size_t i = 0; i < in.at.size(); ++i)
      if (in.at[i] >= 0) in.at[i] += first[local[in.choices[i]]];
  const uint64_t most = options_.packed_capacity != 0 ? options_.packed_capacity : pair.total;
  const size_t bytes = format_.hidden * BytesOf(format_.wire);
  pair.x.Get(most * bytes);
  pair.scales.Get(most * ScalesOf(format_.wire, format_.hidden) * sizeof(float));
  pair.streamed = pair.total * bytes >= kStreamed;
}

void Exchange::Place(Pair& pair) {
  const uint32_t self = links_->rank();
  // Rows of ranks that are masked by now are not computed.
  for (uint32_t r = 0; r < pair.in.size(); ++r)
    if (!InPart(pair, r)) pair.in[r] = {};
  pair.executed.assign(format_.experts, 0);
  pair.by_choice.assign(pair.layer.choices(), 0);
  pair.all_choices.clear();
  pair.all_weights.clear();
  pair.choices.clear();
  pair.counts.clear();
  options_.by_rows ? PlaceByRows(pair) : PlacePacked(pair);
  pair.placed = true;
  const Outgoing& own = pair.plan.to[self];
  const size_t bytes = RowBytes(format_.x, format_.hidden);
  for (uint32_t i = 0; i < own.rows.size(); ++i) {
    const void* row = static_cast<const uint8_t*>(pair.rows.x) + own.rows[i] * bytes;
    if (format_.wire != format_.x) {
      uint8_t* const converted = partial_.Get(format_.stride(Lane::kDispatch));
      Convert(format_.x, row, format_.hidden, format_.wire, converted);
      row = converted;
    }
    PlaceRow(pair, self, i, row);
  }
  pair.in[self].came.rows = pair.in[self].came.total;
}

void Exchange::PlaceRow(Pair& pair, uint32_t rank, uint32_t i, const void* row) {
  const Incoming& in = pair.in[rank];
  const size_t hidden = format_.hidden;
  if (options_.by_rows) {
    ToFloat(format_.wire, row, format_.hidden,
            reinterpret_cast<float*>(pair.x.data()) + (in.first + i) * hidden);
    return;
  }
  const size_t bytes = hidden * BytesOf(format_.wire);
  const size_t scales = ScalesOf(format_.wire, format_.hidden) * sizeof(float);
  const uint8_t* const from = static_cast<const uint8_t*>(row);
  for (size_t k = 0; k < format_.top_k; ++k) {
    const int64_t at = in.at[i * format_.top_k + k];
    if (at < 0) continue;
    uint8_t* const to = pair.x.data() + static_cast<size_t>(at) * bytes;
    if (pair.streamed) {
      Stream(from, bytes, to);
    } else {
      std::memcpy(to, from, bytes);
    }
    if (scales > 0)
      std::memcpy(pair.scales.data() + static_cast<size_t>(at) * scales,
                  from + RowBytes(format_.wire, format_.hidden) - scales, scales);
  }
}

void Exchange::LeaveEmpty(Pair& pair, uint32_t rank) {
  if (!pair.placed || pair.stage != Stage::kDispatching) return;
  const std::vector<uint8_t> zeros(format_.stride(Lane::kDispatch), 0);
  Progress& came = pair.in[rank].came;
  while (came.rows < came.total) PlaceRow(pair, rank, came.rows++, zeros.data());
}

bool Exchange::Received(const Pair& pair) const {
  if (!pair.placed || !AllSent(pair, Lane::kDispatch)) return false;
  for (uint32_t r = 0; r < links_->ranks(); ++r)
    if (InPart(pair, r) && !pair.in[r].came.complete()) return false;
  return true;
}

void Exchange::Lacks(Pair& pair, uint32_t rank, uint32_t i, uint32_t bits) {
  const Outgoing& to = pair.plan.to[rank];
  const size_t top_k = format_.top_k;
  for (uint32_t k = 0; k < top_k; ++k)
    if ((bits >> k & 1) != 0 && to.choices[i * top_k + k] != kNone)
      pair.missing.push_back({to.rows[i], k, pair.experts[to.rows[i] * top_k + k]});
}

bool Exchange::MergeRow(Pair& pair) {
  const uint32_t ranks = links_->ranks(), self = links_->rank();
  const auto lane = static_cast<size_t>(Lane::kCombine);
  const auto next = [&](uint32_t r) {
    const std::vector<uint32_t>& rows = pair.plan.to[r].rows;
    return pair.merged[r] < rows.size() && rows[pair.merged[r]] == pair.row;
  };
  for (uint32_t r = 0; r < ranks; ++r) {
    if (r == self || !next(r) || !InPart(pair, r)) continue;
    const Front& front = fronts_[r][lane];
    if (!front.open || front.head.pair != pair.number || front.row == front.head.rows) return false;
  }
  const size_t y_bytes = format_.hidden * BytesOf(format_.sums);
  addends_.clear();
  for (uint32_t r = 0; r < ranks; ++r) {
    if (!next(r)) continue;
    const uint32_t i = pair.merged[r];
    if (r == self) {
      uint8_t* const partial = partial_.Get(format_.stride(Lane::kCombine));
      Lacks(pair, r, i, PartialOf(pair, r, i, partial));
      addends_.push_back(partial);
    } else if (!InPart(pair, r)) {
      Lacks(pair, r, i, ~0u);
    } else {
      const Front& front = fronts_[r][lane];
      const uint8_t* const rows =
          front.slot + RowsAt(front.head.metas, format_.meta_bytes(Lane::kCombine));
      Lacks(pair, r, i, pair.back[r].lacking[i]);
      addends_.push_back(rows + front.row * format_.stride(Lane::kCombine));
    }
  }
  uint8_t* const y = static_cast<uint8_t*>(pair.y) + pair.row * y_bytes;
  // A large y leaves the caches before it is read again, so it is written past them.
  uint8_t* const sum = pair.streamed ? sum_.Get(y_bytes) : y;
  if (!Sum(format_.sums, addends_, format_.hidden, sum)) pair.wraps = true;
  if (pair.streamed) Stream(sum, y_bytes, y);
  // The received slots may be overwritten only from here on.
  for (uint32_t r = 0; r < ranks; ++r) {
    if (!next(r)) continue;
    ++pair.merged[r];
    Front& front = fronts_[r][lane];
    if (r == self || !InPart(pair, r) || !front.open) continue;
    ++pair.back[r].came.rows;
    if (++front.row < front.head.rows) continue;
    front.open = false;
    links_->at(r)->Pop(Lane::kCombine);
    Take(r, *links_->at(r), Lane::kCombine);  // the next slot's head
  }
  ++pair.row;
  return true;
}

void Exchange::Merge(Pair& pair) {
  if (pair.y == nullptr && pair.rows.count > 0) return;
  while (pair.row < pair.rows.count && MergeRow(pair)) {
  }
}

bool Exchange::Finished(const Pair& pair) const {
  return pair.row == pair.rows.count && AllSent(pair, Lane::kCombine);
}

}  // namespace tangram::dispatch
