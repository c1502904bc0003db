#include "agent/store/sources.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

Status CheckpointSource::Read(const Wanted& wanted, const mover::Range& range) const {
  const loader::Checkpoint& checkpoint = *store_->options_.checkpoint;
  if (const layout::PartProof::Move* move = wanted.move) {
    const device::Memory whole{range.units[0].device, range.units[0].address, range.bytes()};
    return device::Fill(whole, [&](std::span<std::byte> bytes) {
      return checkpoint.ReadGranules(move->piece.layer, move->piece.expert, move->run, bytes);
    });
  }
  size_t unit = 0;
  for (size_t t = wanted.dense_part; t < checkpoint.dense().size(); t += kDenseParts) {
    TANGRAM_RETURN_IF_ERROR(device::Fill(range.units[unit++], [&](std::span<std::byte> bytes) {
      return checkpoint.ReadDense(t, bytes);
    }));
  }
  return OkStatus();
}

Status CheckpointSource::Bring(std::span<const mover::Range> job, std::span<const size_t> ranges,
                               const Arrived& arrived, const std::stop_token& stop) {
  for (const size_t i : ranges) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    TANGRAM_RETURN_IF_ERROR(Read((*wanted_)[i], job[i]));
    std::vector<uint64_t> hashes(job[i].units.size());
    std::vector<device::HashOp> ops;
    for (size_t u = 0; u < hashes.size(); ++u) ops.push_back({job[i].units[u], &hashes[u]});
    TANGRAM_RETURN_IF_ERROR(store_->memories_.devices.weights->Hash(ops).Wait());
    arrived(i, std::move(hashes));
  }
  return OkStatus();
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
