#include "agent/store/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <thread>

#include "agent/base/background.h"
#include "agent/base/fault.h"
#include "agent/base/thread.h"

namespace tangram::store {
namespace {

const fault::Point kBeforeFetch("stage.before_fetch", fault::kErrors);

bool HasBytes(const mover::Range& range) {
  return range.units.empty() || range.units[0].device == nullptr ||
         range.units[0].device->has_bytes();
}

// Granules are consecutive; the tail is at the end of the piece.
loader::SharedReads::Want WantOf(const layout::PartProof::Move& move, const mover::Range& range) {
  loader::SharedReads::Want out{move.piece.layer, move.piece.expert, move.run, {}, {}};
  if (move.tail) out.tail = range.units.back();
  out.to = range.units[0];
  out.to.bytes = range.bytes() - out.tail.bytes;
  return out;
}

}  // namespace

void CheckpointSource::Enrol(std::span<const mover::Range> job, std::span<const size_t> ranges) {
  std::vector<loader::SharedReads::Want> wants;
  place_.assign(job.size(), 0);
  for (const size_t i : ranges) {
    const layout::PartProof::Move* move = (*wanted_)[i].move;
    if (move == nullptr || !HasBytes(job[i])) continue;
    wants.push_back(WantOf(*move, job[i]));
    place_[i] = wants.size();
  }
  list_ = store_->options_.reads->Enrol(std::move(wants));
}

Result<std::vector<uint64_t>> CheckpointSource::Dense(uint32_t part,
                                                      const mover::Range& range) const {
  const loader::Checkpoint& checkpoint = *store_->options_.checkpoint;
  std::vector<uint64_t> hashes(range.units.size()), read(range.units.size());
  size_t unit = 0;
  for (size_t t = part; t < checkpoint.dense().size(); t += kDenseParts, ++unit) {
    const device::Memory& to = range.units[unit];
    TANGRAM_RETURN_IF_ERROR(device::Fill(to, [&](std::span<std::byte> bytes) {
      return checkpoint.ReadDense(t, bytes, &read[unit]);
    }));
    // Bytes read directly into their place were hashed on arrival.
    if (HasBytes(range) && device::View(to).size() == to.bytes) {
      hashes[unit] = read[unit];
      continue;
    }
    TANGRAM_RETURN_IF_ERROR(device::HashNow(to, &hashes[unit]));
    if (HasBytes(range) && hashes[unit] != read[unit]) {
      return Status{Code::kCorrupt,
                    fmt::format("{}: the copied bytes differ from the bytes that were read",
                                checkpoint.dense()[t].name)};
    }
  }
  return hashes;
}

Result<std::vector<uint64_t>> CheckpointSource::BringOne(size_t i,
                                                         const mover::Range& range) const {
  const layout::PartProof::Move* move = (*wanted_)[i].move;
  if (move == nullptr) return Dense((*wanted_)[i].dense_part, range);
  if (!HasBytes(range)) {
    std::vector<uint64_t> hashes(range.units.size());
    std::vector<device::HashOp> ops;
    for (size_t u = 0; u < hashes.size(); ++u) ops.push_back({range.units[u], &hashes[u]});
    TANGRAM_RETURN_IF_ERROR(store_->memories_.devices.weights->Hash(ops).Wait());
    return hashes;
  }
  if (i < place_.size() && place_[i] != 0) return list_->Bring(place_[i] - 1);
  return store_->options_.reads->Enrol({WantOf(*move, range)})->Bring(0);
}

Status CheckpointSource::Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
                               const Arrived& arrived, const std::stop_token& stop) {
  std::mutex mu;  // guards everything below
  size_t next = 0;
  Status status;
  const auto work = [&] {
    while (true) {
      size_t i = 0;
      {
        const std::scoped_lock lock(mu);
        if (!status.ok() || next == ranges.size()) return;
        if (stop.stop_requested()) {
          status = {Code::kUnavailable, "stopped"};
          return;
        }
        i = ranges[next++];
      }
      auto hashes = BringOne(i, job[i]);
      if (hashes.ok()) {
        arrived(i, std::move(hashes).value());
        continue;
      }
      const std::scoped_lock lock(mu);
      if (status.ok()) status = hashes.status();
      return;
    }
  };
  {
    std::vector<std::jthread> others;
    const size_t threads = std::min<size_t>(store_->options_.load_threads, ranges.size());
    for (size_t t = 1; t < threads; ++t) {
      auto other = StartThread([&] {
        YieldToServing();
        work();
      });
      if (!other.ok()) break;  // fewer threads read then
      others.push_back(std::move(other).value());
    }
    work();
  }
  return status;
}

Status HeldSource::Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
                         const Arrived& arrived, const std::stop_token& stop) {
  // In batches: a range may be one granule, and a device's wait is as long for one as for many.
  for (size_t begin = 0, end = 0; begin < ranges.size(); begin = end) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    uint64_t bytes = 0;
    while (end < ranges.size() && bytes < kTogether) bytes += job[ranges[end++]].bytes();
    TANGRAM_RETURN_IF_ERROR(BringSome(job, ranges.subspan(begin, end - begin), arrived));
  }
  return OkStatus();
}

Status HeldSource::BringSome(std::span<const mover::Range> job, std::span<const size_t> ranges,
                             const Arrived& arrived) {
  std::vector<device::Memory> from;
  std::vector<uint64_t> hashes;
  {
    const std::scoped_lock lock(store_->mu_);
    for (const size_t i : ranges) {
      const layout::PartProof::Move& move = *(*wanted_)[i].move;
      const Piece& held = store_->current_[move.held];
      for (uint32_t g = 0; g < move.run.count; ++g) {
        from.push_back(store_->BytesOf(held.place, move.run.start + g, 1));
        hashes.push_back(held.hashes[move.run.start + g - held.place.run.start]);
      }
      if (move.tail) {
        from.push_back(store_->TailOf(held.place));
        hashes.push_back(held.tail());
      }
    }
  }
  std::vector<uint64_t> came(from.size());
  std::vector<device::CopyOp> copies;
  for (const size_t i : ranges) {
    for (const device::Memory& to : job[i].units) {
      copies.push_back({to, from[copies.size()], &came[copies.size()]});
    }
  }
  TANGRAM_RETURN_IF_ERROR(store_->memories_.devices.weights->Copy(copies).Wait());
  auto is = came.begin(), was = hashes.begin();
  for (const size_t i : ranges) {
    const layout::PartProof::Move& move = *(*wanted_)[i].move;
    const auto end = is + static_cast<std::ptrdiff_t>(job[i].units.size());
    if (const auto bad = std::mismatch(is, end, was).first; bad != end) {
      const auto unit = static_cast<uint32_t>(bad - is);
      return {
          Code::kCorrupt,
          fmt::format(
              "layer {}, expert {}, {} has changed since it was verified", move.piece.layer,
              move.piece.expert,
              unit == move.run.count ? "tail" : fmt::format("granule {}", move.run.start + unit))};
    }
    arrived(i, {is, end});
    was += end - is;
    is = end;
  }
  return OkStatus();
}

Result<v1::OpenPullResponse> RankSource::Open(std::span<const size_t> ranges,
                                              const std::stop_token& stop,
                                              const mover::Transport* transport) const {
  v1::OpenPullRequest request;
  *request.mutable_header() = header_;
  request.set_rank(peer_.rank());
  request.set_member(peer_.member());
  request.set_by_descriptor(transport != nullptr && transport->capabilities().one_sided);
  // Dense parts come after all pieces, like the hashes in the reply.
  for (const size_t i : ranges) {
    if (const layout::PartProof::Move* move = (*wanted_)[i].move) {
      if (move->tail) request.add_tails(static_cast<uint32_t>(request.pieces().layer_size()));
      request.mutable_pieces()->add_layer(move->piece.layer);
      request.mutable_pieces()->add_expert(move->piece.expert);
      request.mutable_pieces()->add_granule_start(move->run.start);
      request.mutable_pieces()->add_granule_count(move->run.count);
    } else {
      request.add_dense_parts((*wanted_)[i].dense_part);
    }
  }
  if (fault::Hit("stage.before_fetch") == fault::Action::kError) {
    return Status{Code::kUnavailable, "fault point stage.before_fetch"};
  }
  // Only bytes of a rank of this process take a shorter path.
  return transport == nullptr ? sibling_->OpenPull(request, "")
                              : store_->options_.opener(peer_.agent(), request, stop);
}

Result<device::Memory> RankSource::SlabOf(const v1::OpenPullResponse& opened, int row,
                                          layout::Run run) const {
  if (row < opened.slab_starts_size() && row < opened.slab_counts_size()) {
    const layout::Run slab{opened.slab_starts(row), opened.slab_counts(row)};
    const device::Shape* const shape = store_->shapes_.Of(slab.count);
    if (shape != nullptr && run.start >= slab.start &&
        uint64_t{run.start} + run.count <= uint64_t{slab.start} + slab.count) {
      const uint64_t unit = shape->unit_bytes();
      return device::Memory{nullptr, 0, run.count * unit, shape, run.start - slab.start};
    }
  }
  return Status(Code::kInvalid, fmt::format("{} did not report the slab of granules {}..{}", name(),
                                            run.start, uint64_t{run.start} + run.count));
}

Status RankSource::Pull(mover::Transport* transport, const std::string& token,
                        std::span<const mover::Target> targets,
                        const std::function<void(uint64_t)>& done,
                        const std::stop_token& stop) const {
  if (transport == nullptr) return sibling_->CopyOut(token, targets, done, stop);
  Status status = transport->Pull(peer_, token, targets, stop, done);
  if (!status.ok() && status.code() != Code::kCorrupt && !stop.stop_requested()) {
    store_->options_.transports->Failed(*transport, peer_);
  }
  return status;
}

Status RankSource::Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
                         const Arrived& arrived, const std::stop_token& stop) {
  std::vector<size_t> order(ranges.begin(), ranges.end());
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t i) { return (*wanted_)[i].move != nullptr; });
  mover::Transport* const transport =
      sibling_ != nullptr ? nullptr : &store_->options_.transports->For(peer_);
  if (transport != nullptr) {
    const mover::Capabilities can = transport->capabilities();
    by_ = !can.network ? By::kMemory : can.library ? By::kWire : By::kTcp;
    way_ = transport->name();
  }
  const auto opened = Open(order, stop, transport);
  if (!opened.ok()) return opened.status();
  std::vector<mover::Target> targets;
  const auto all = [](const auto& hashes) {
    return std::span(hashes.data(), static_cast<size_t>(hashes.size()));
  };
  auto granules = all(opened->granule_hashes()), tails = all(opened->tail_hashes()),
       tensors = all(opened->dense_hashes());
  int row = 0;         // among rows with granules
  uint64_t shown = 0;  // bytes so far in the source's address order
  for (const size_t i : order) {
    const layout::PartProof::Move* move = (*wanted_)[i].move;
    const uint32_t granules_of = move == nullptr ? 0 : move->run.count;
    device::Memory slab;  // contains the granules, if they are interleaved
    if (granules_of > 0 && store_->geometry().row_major()) {
      auto there = SlabOf(*opened, row++, move->run);
      if (!there.ok()) return there.status();
      slab = *there;
      slab.address = shown;
    }
    for (size_t u = 0; u < job[i].units.size(); ++u) {
      auto& next = move == nullptr ? tensors : u < granules_of ? granules : tails;
      if (next.empty()) {
        return {Code::kInvalid,
                fmt::format("{} returned fewer hashes than requested units", name())};
      }
      device::Memory from{nullptr, shown, job[i].units[u].bytes};
      if (u >= granules_of || slab.shape == nullptr) {
        shown += from.bytes;
      } else {
        from = slab.Part(u * from.bytes, from.bytes);
        if (u + 1 == granules_of) shown += slab.shape->units * from.bytes;
      }
      targets.push_back({job[i].units[u], next.front(), from});
      next = next.subspan(1);
    }
  }
  // Units arrive in order; a range is complete with its last one.
  size_t at = 0, unit = 0, target = 0;
  const auto ended = [&] {
    for (; at < order.size() && unit == job[order[at]].units.size(); ++at, unit = 0) {
      std::vector<uint64_t> hashes;
      for (size_t u = 0; u < unit; ++u) hashes.push_back(targets[target - unit + u].hash);
      arrived(order[at], std::move(hashes));
    }
  };
  ended();  // a part of the dense tensors may be empty
  const auto done = [&](uint64_t) {
    ++target;
    ++unit;
    ended();
  };
  return Pull(transport, opened->token(), targets, done, stop);
}

}  // namespace tangram::store
