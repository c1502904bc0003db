#include "agent/store/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "agent/base/background.h"
#include "agent/base/fault.h"

namespace tangram::store {
namespace {

const fault::Point kBeforeFetch("stage.before_fetch", fault::kErrors);

// A fault: the first byte is another.
Status Spoil(const device::Memory& memory) {
  std::byte byte{};
  const device::CopyOp out{device::Memory::Own({&byte, 1}), memory.Part(0, 1)};
  TANGRAM_RETURN_IF_ERROR(memory.device->Copy({&out, 1}).Wait());
  byte ^= std::byte{1};
  const device::CopyOp in{memory.Part(0, 1), device::Memory::Own({&byte, 1})};
  return memory.device->Copy({&in, 1}).Wait();
}

bool HasBytes(const mover::Range& range) {
  return range.units.empty() || range.units[0].device == nullptr ||
         range.units[0].device->has_bytes();
}

// Its units lie one after another.
loader::SharedReads::Want WantOf(const layout::PartProof::Move& move, const mover::Range& range) {
  return {move.piece.layer,
          move.piece.expert,
          move.run,
          {range.units[0].device, range.units[0].address, range.bytes()}};
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
    // In the place itself it was hashed as it came.
    if (HasBytes(range) && device::View(to).size() == to.bytes) {
      hashes[unit] = read[unit];
      continue;
    }
    TANGRAM_RETURN_IF_ERROR(device::HashNow(to, &hashes[unit]));
    if (HasBytes(range) && hashes[unit] != read[unit]) {
      return Status{Code::kCorrupt, fmt::format("{} arrived otherwise than it was read",
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
  std::mutex mu;  // what follows
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
      others.emplace_back([&] {
        YieldToServing();
        work();
      });
    }
    work();
  }
  return status;
}

Status HeldSource::Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
                         const Arrived& arrived, const std::stop_token& stop) {
  const uint64_t unit = store_->geometry().granule_bytes();
  for (const size_t i : ranges) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    const layout::PartProof::Move& move = *(*wanted_)[i].move;
    device::Memory from;
    std::vector<uint64_t> hashes;
    {
      const std::scoped_lock lock(store_->mu_);
      const Piece& held = store_->current_[move.held];
      from = store_->BytesOf(held.place, move.run.start, move.run.count);
      const auto first = held.hashes.begin() + (move.run.start - held.place.run.start);
      hashes.assign(first, first + move.run.count);
    }
    std::vector<uint64_t> came(move.run.count);
    std::vector<device::CopyOp> copies;
    for (uint32_t g = 0; g < move.run.count; ++g) {
      copies.push_back({job[i].units[g], from.Part(g * unit, unit), &came[g]});
    }
    TANGRAM_RETURN_IF_ERROR(store_->memories_.devices.weights->Copy(copies).Wait());
    if (const auto bad = std::mismatch(came.begin(), came.end(), hashes.begin()).first;
        bad != came.end()) {
      return {Code::kCorrupt, fmt::format("layer {}, expert {}, granule {} has changed since it "
                                          "was verified",
                                          move.piece.layer, move.piece.expert,
                                          move.run.start + (bad - came.begin()))};
    }
    arrived(i, std::move(hashes));
  }
  return OkStatus();
}

Result<v1::OpenPullResponse> RankSource::Open(std::span<const size_t> ranges,
                                              const mover::Transport* transport) const {
  v1::OpenPullRequest request;
  *request.mutable_header() = header_;
  request.set_rank(peer_.rank());
  request.set_member(peer_.member());
  request.set_by_descriptor(transport != nullptr && transport->capabilities().one_sided);
  // Dense parts come behind all pieces, as the answer's hashes do.
  for (const size_t i : ranges) {
    if (const layout::PartProof::Move* move = (*wanted_)[i].move) {
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
  // Only the bytes of a rank of this process take a shorter way.
  return transport == nullptr ? sibling_->OpenPull(request, "")
                              : store_->options_.opener(peer_.agent(), request);
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
  if (transport != nullptr) shares_ = !transport->capabilities().network;
  const auto opened = Open(order, transport);
  if (!opened.ok()) return opened.status();
  std::vector<mover::Target> targets;
  int granules = 0, tensors = 0;
  for (const size_t i : order) {
    const bool dense = (*wanted_)[i].move == nullptr;
    for (const device::Memory& unit : job[i].units) {
      int& next = dense ? tensors : granules;
      if (next >= (dense ? opened->dense_hashes_size() : opened->granule_hashes_size())) {
        return {Code::kInvalid,
                fmt::format("{} gave fewer hashes than it was asked for units", name())};
      }
      targets.push_back({unit, dense ? opened->dense_hashes(next) : opened->granule_hashes(next)});
      ++next;
    }
  }
  // Units come in order; a range is there with its last one.
  size_t at = 0, unit = 0, target = 0;
  const auto ended = [&] {
    for (; at < order.size() && unit == job[order[at]].units.size(); ++at, unit = 0) {
      std::vector<uint64_t> hashes;
      for (size_t u = 0; u < unit; ++u) hashes.push_back(targets[target - unit + u].hash);
      arrived(order[at], std::move(hashes));
    }
  };
  ended();  // a part of the dense tensors may have none
  const auto done = [&](uint64_t) {
    ++target;
    ++unit;
    ended();
  };
  return Pull(transport, opened->token(), targets, done, stop);
}

// The source's side of a pull within this process.
Status RankStore::CopyOut(const std::string& token, std::span<const mover::Target> targets,
                          const std::function<void(uint64_t)>& done, const std::stop_token& stop) {
  const Status gone{Code::kUnavailable, "the source let go of its pieces"};
  const auto grant = options_.grants->Redeem(token, std::nullopt);
  if (!grant) return gone;
  size_t at = 0;
  for (device::Memory from : grant->pieces) {
    // Memory of the grant is a run of granules; the targets are single ones.
    while (from.bytes > 0) {
      if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
      if (at >= targets.size() || targets[at].to.bytes > from.bytes) {
        return {Code::kInternal, "a pull and its grant do not match"};
      }
      const mover::Target& target = targets[at++];
      uint64_t hash = 0;
      const device::CopyOp op{target.to, from.Part(0, target.to.bytes), &hash};
      Status copied;
      // The pages stay while we read; whoever hears of the bytes may wait for others.
      const bool there = grant->lease->Use([&] {
        copied = memories_.devices.weights->Copy({&op, 1}).Wait();
      });
      if (!there) return gone;
      TANGRAM_RETURN_IF_ERROR(copied);
      if (fault::Hit("stage.after_fetch") == fault::Action::kCorrupt) {
        TANGRAM_RETURN_IF_ERROR(Spoil(target.to));
        TANGRAM_RETURN_IF_ERROR(device::HashNow(target.to, &hash));
      }
      if (hash != target.hash) {
        return {Code::kCorrupt,
                fmt::format("unit {} of {} differs from its hash", at - 1, targets.size())};
      }
      from = from.Part(target.to.bytes, from.bytes - target.to.bytes);
      done(target.to.bytes);
    }
  }
  return OkStatus();
}

}  // namespace tangram::store
