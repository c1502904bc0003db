#include "agent/engine/exchange/exchange.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace tangram::engine {

void ExpertExchange::Enter(std::shared_ptr<const Routes> routes) {
  routes_ = std::move(routes);
  if (routes_) turns_.resize(size_t{routes_->moe_layers()} * experts_, 0);
  open_ = false;
}

Status ExpertExchange::Choose(const LayerRoutes& layer, uint32_t moe_ordinal, const Rows& rows,
                              std::span<const uint8_t> active) {
  const std::span turns = std::span(turns_).subspan(size_t{moe_ordinal} * experts_, experts_);
  const uint32_t top_k = format_.top_k;
  const auto alive = [&](uint32_t rank) { return active.empty() || active[rank] != 0; };
  for (uint32_t row = 0; row < rows.count; ++row) {
    for (uint32_t k = 0; k < top_k; ++k) {
      const int32_t e = rows.experts[size_t{row} * top_k + k];
      if (e < 0 || static_cast<uint32_t>(e) >= experts_)
        return {Code::kInvalid, "row " + std::to_string(row) + " is for expert " +
                                    std::to_string(e) + " of " + std::to_string(experts_)};
      ++routed_[e];
      const uint32_t first = layer.first[e], replicas = layer.first[e + 1] - first;
      const uint32_t turn = turns[e]++;
      uint32_t choice = 0, tried = 0;
      for (; tried < replicas; ++tried) {
        choice = first + (turn + tried) % replicas;
        if (std::ranges::all_of(layer.RanksOf(choice), alive)) break;
      }
      if (tried == replicas)
        return {Code::kUnavailable, "layer " + std::to_string(moe_ordinal) +
                                        " of experts: expert " + std::to_string(e) +
                                        " has no alternative without a rank that is left out"};
      for (const uint32_t rank : layer.RanksOf(choice)) {
        Outgoing& to = outgoing_[rank];
        if (to.rows.empty() || to.rows.back() != row) {
          to.rows.push_back(row);
          to.choices.resize(to.choices.size() + top_k, RowMessage::kNone);
        }
        to.choices[to.choices.size() - top_k + k] = static_cast<int32_t>(choice);
      }
    }
  }
  return OkStatus();
}

// Appends what a rank asks: its message, or this rank's own rows, which need none.
Status ExpertExchange::Take(const LayerRoutes& layer, uint32_t rank, const std::vector<Bytes>& came,
                            const Rows& rows, bool own) {
  const size_t hidden = format_.hidden, top_k = format_.top_k, at = arrived_.rows;
  const auto grow = [&](uint32_t count) {
    came_[rank] = count;
    arrived_.rows += count;
    arrived_.x.resize(arrived_.rows * hidden);
    arrived_.choices.resize(arrived_.rows * top_k);
    arrived_.weights.resize(arrived_.rows * top_k);
  };
  if (own) {
    const Outgoing& from = outgoing_[rank];
    grow(static_cast<uint32_t>(from.rows.size()));
    std::ranges::copy(from.choices, arrived_.choices.begin() + static_cast<ptrdiff_t>(at * top_k));
    const size_t bytes = hidden * BytesOf(format_.element);
    for (size_t i = 0; i < from.rows.size(); ++i) {
      ToFloat(format_.element, static_cast<const uint8_t*>(rows.x) + from.rows[i] * bytes, hidden,
              arrived_.x.data() + (at + i) * hidden);
      std::copy_n(rows.weights + from.rows[i] * top_k, top_k,
                  arrived_.weights.data() + (at + i) * top_k);
    }
  } else {
    const auto bad = [&](const std::string& what) {
      return Status{Code::kInternal, "rows from rank " + std::to_string(rank) + ": " + what};
    };
    const Result<RowMessage> message = RowMessage::Decode(format_, came[rank]);
    if (!message.ok()) return bad(message.status().message());
    grow(message->rows);
    if (message->rows == 0) return OkStatus();
    ToFloat(format_.element, message->x, message->rows * hidden, arrived_.x.data() + at * hidden);
    std::memcpy(arrived_.choices.data() + at * top_k, message->choices,
                message->rows * top_k * sizeof(int32_t));
    std::memcpy(arrived_.weights.data() + at * top_k, message->weights,
                message->rows * top_k * sizeof(float));
  }
  for (const int32_t choice : std::span(arrived_.choices).subspan(at * top_k)) {
    if (choice == RowMessage::kNone) continue;
    if (choice < 0 || static_cast<uint32_t>(choice) >= layer.choices() ||
        layer.PiecesOf(static_cast<uint32_t>(choice)).empty())
      return {Code::kInternal, "rows from rank " + std::to_string(rank) + ": choice " +
                                   std::to_string(choice) + " of " +
                                   std::to_string(layer.choices()) + " has no piece here"};
    ++executed_[layer.PiecesOf(static_cast<uint32_t>(choice)).front().expert];
  }
  return OkStatus();
}

Status ExpertExchange::Dispatch(Communicator& comm, uint64_t step, uint64_t sequence,
                                uint32_t moe_ordinal, const Rows& rows,
                                std::span<const uint8_t> active) {
  open_ = false;
  if (!routes_ || moe_ordinal >= routes_->moe_layers())
    return {Code::kInvalid,
            "no layout in force has layer " + std::to_string(moe_ordinal) + " of experts"};
  if (!active.empty() && active.size() != comm.size())
    return {Code::kInvalid, "of a world of " + std::to_string(comm.size()) + " ranks " +
                                std::to_string(active.size()) + " are said to be active or not"};
  const LayerRoutes layer = routes_->Layer(moe_ordinal);
  outgoing_.resize(comm.size());
  for (Outgoing& to : outgoing_) {
    to.rows.clear();
    to.choices.clear();
  }
  routed_.assign(experts_, 0);
  executed_.assign(experts_, 0);
  TANGRAM_RETURN_IF_ERROR(Choose(layer, moe_ordinal, rows, active));

  ranks_.clear();
  for (uint32_t r = 0; r < comm.size(); ++r)
    if (active.empty() || active[r] != 0) ranks_.push_back(r);
  std::vector<Bytes> send(comm.size()), came(comm.size());
  if (comm.size() > 1) {
    for (const uint32_t r : ranks_)
      if (r != comm.rank())
        send[r] = RowMessage::Encode(format_, outgoing_[r].rows, rows.x, rows.weights,
                                     outgoing_[r].choices);
    TANGRAM_RETURN_IF_ERROR(comm.Exchange(step, sequence, ranks_, send, &came));
  }
  came_.assign(comm.size(), 0);
  arrived_.rows = 0;
  for (const uint32_t r : ranks_)
    TANGRAM_RETURN_IF_ERROR(Take(layer, r, came, rows, r == comm.rank()));
  arrived_.x.resize(size_t{arrived_.rows} * format_.hidden);
  arrived_.choices.resize(size_t{arrived_.rows} * format_.top_k);
  arrived_.weights.resize(size_t{arrived_.rows} * format_.top_k);
  step_ = step;
  sequence_ = sequence + 1;
  count_ = rows.count;
  open_ = true;
  return OkStatus();
}

template <typename T>
Status ExpertExchange::CombineAs(Communicator& comm, const T* partials, T* y) {
  if (!std::exchange(open_, false))
    return {Code::kInvalid, "a combine without a dispatch before it: they come in pairs"};
  const size_t hidden = format_.hidden, row_bytes = hidden * sizeof(T);
  std::vector<Bytes> send(comm.size()), came(comm.size());
  const T* own = partials;
  const T* from = partials;
  for (const uint32_t r : ranks_) {
    if (r == comm.rank()) {
      own = from;
    } else if (came_[r] > 0) {
      const auto* const raw = reinterpret_cast<const uint8_t*>(from);
      send[r].assign(raw, raw + came_[r] * row_bytes);
    }
    from += came_[r] * hidden;
  }
  if (comm.size() > 1)
    TANGRAM_RETURN_IF_ERROR(comm.Exchange(step_, sequence_, ranks_, send, &came));

  std::fill_n(y, size_t{count_} * hidden, T{0});
  bool wraps = false;
  for (const uint32_t r : ranks_) {
    const std::vector<uint32_t>& rows = outgoing_[r].rows;
    if (r != comm.rank() && came[r].size() != rows.size() * row_bytes)
      return {Code::kInternal, "rank " + std::to_string(r) + " answered " +
                                   std::to_string(came[r].size()) + " bytes, expected " +
                                   std::to_string(rows.size() * row_bytes)};
    // What operator new gave is aligned for every T.
    const T* part = r == comm.rank() ? own : reinterpret_cast<const T*>(came[r].data());
    for (const uint32_t row : rows) {
      T* const to = y + row * hidden;
      for (size_t h = 0; h < hidden; ++h) {
        if constexpr (std::is_same_v<T, int64_t>) {
          wraps |= __builtin_add_overflow(to[h], part[h], &to[h]);
        } else {
          to[h] += part[h];
        }
      }
      part += hidden;
    }
  }
  if (wraps) return {Code::kInternal, "a sum of ranks leaves 64-bit fixed point"};
  return OkStatus();
}

Status ExpertExchange::Combine(Communicator& comm, const float* partials, float* y) {
  return CombineAs(comm, partials, y);
}

Status ExpertExchange::Combine(Communicator& comm, const int64_t* partials, int64_t* y) {
  return CombineAs(comm, partials, y);
}

}  // namespace tangram::engine
