// A rank's side of other ranks' pulls: grants, exports and, within this process, copies.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/base/fault.h"
#include "agent/store/rank_store.h"

namespace tangram::store {

using layout::Run;

namespace {

// Bytes per batch of a device within one use of a lease: the lease's end waits for at most this.
constexpr uint64_t kCopiedTogether = 16 << 20;

// A fault: changes the first byte.
Status Spoil(const device::Memory& memory) {
  std::byte byte{};
  const device::Memory first = device::FirstByte(memory);
  const device::CopyOp out{device::Memory::Own({&byte, 1}), first};
  TANGRAM_RETURN_IF_ERROR(memory.device->Copy({&out, 1}).Wait());
  byte ^= std::byte{1};
  const device::CopyOp in{first, device::Memory::Own({&byte, 1})};
  return memory.device->Copy({&in, 1}).Wait();
}

}  // namespace

const Piece* RankStore::FindLocked(uint32_t layer, uint32_t expert, Run run) const {
  for (const Pieces* pieces : {&current_, &old_}) {
    if (const Piece* piece = pieces->Find(layer, expert, run)) return piece;
  }
  return attempt_ ? attempt_->incoming.Find(layer, expert, run) : nullptr;
}

const Piece* RankStore::FindTailLocked(uint32_t layer, uint32_t expert) const {
  for (const Pieces* pieces : {&current_, &old_}) {
    if (const Piece* piece = pieces->FindTail(layer, expert)) return piece;
  }
  return attempt_ ? attempt_->incoming.FindTail(layer, expert) : nullptr;
}

Result<v1::OpenPullResponse> RankStore::OpenPull(const v1::OpenPullRequest& request,
                                                 const std::string& pod) {
  const std::scoped_lock lock(mu_);
  v1::OpenPullResponse out;
  mover::Grant grant;
  grant.attempt = request.header().attempt();
  // The attempt was in progress when the call was checked.
  if (grant.attempt > 0 && grant.attempt <= over_) {
    return Status(Code::kUnavailable,
                  fmt::format("attempt {} has ended on this agent", grant.attempt));
  }
  grant.pod = pod;
  grant.owner = this;
  grant.lease = lease_;
  TANGRAM_RETURN_IF_ERROR(GrantPiecesLocked(request, &grant, &out));
  // A caller that waits for a part that never comes would wait until the attempt ends.
  const bool mine = attempt_ && attempt_->id == grant.attempt;
  for (const uint32_t part : request.dense_parts()) {
    if (part >= kDenseParts || !dense_here_[part]) {
      const bool comes = part < kDenseParts && (!mine || !attempt_->dense_source.empty());
      return Status(comes ? Code::kNotHeld : Code::kUnavailable,
                    fmt::format("dense part {} is not {} on this agent", part,
                                comes ? "verified" : "resident and will not be fetched"));
    }
    for (size_t t = part; t < dense_hashes_.size(); t += kDenseParts) {
      grant.pieces.push_back(DenseBytes(t));
      out.add_dense_hashes(dense_hashes_[t]);
    }
  }
  if (request.kv()) grant.kv = memories_.kv.memory;
  if (request.by_descriptor()) {
    auto shown = ShowLocked(grant);
    if (!shown.ok()) return shown.status();
    grant.shown = std::move(shown).value();
  }
  out.set_token(options_.grants->Issue(std::move(grant)));
  return out;
}

Status RankStore::GrantPiecesLocked(const v1::OpenPullRequest& request, mover::Grant* grant,
                                    v1::OpenPullResponse* out) const {
  const v1::Fetches& wanted = request.pieces();
  const int n = wanted.layer_size();
  if (wanted.expert_size() != n || wanted.granule_start_size() != n ||
      wanted.granule_count_size() != n) {
    return {Code::kInvalid, "pull has columns of different lengths"};
  }
  // A plan may be older than this agent, which has resumed only the active layout. Other pieces
  // that the previous agent retained never come.
  const bool mine = attempt_ && attempt_->id == grant->attempt;
  const auto lacking = [](bool comes, const std::string& what) -> Status {
    return {comes ? Code::kNotHeld : Code::kUnavailable,
            fmt::format("{} not {} on this agent", what,
                        comes ? "verified" : "resident and will not be fetched")};
  };
  int tails = 0;  // granted so far
  for (int i = 0; i < n; ++i) {
    const uint32_t layer = wanted.layer(i), expert = wanted.expert(i);
    const Run run{wanted.granule_start(i), wanted.granule_count(i)};
    const bool tail = geometry().tail_bytes() > 0 && tails < request.tails_size() &&
                      request.tails(tails) == static_cast<uint32_t>(i);
    if (run.count > 0 || !tail) {
      const Piece* piece = FindLocked(layer, expert, run);
      if (piece == nullptr) {
        return lacking(!mine || attempt_->incoming.Names(layer, expert, run),
                       fmt::format("layer {}, expert {}, granules {}..{} are", layer, expert,
                                   run.start, uint64_t{run.start} + run.count));
      }
      grant->pieces.push_back(BytesOf(piece->place, run.start, run.count));
      if (geometry().row_major()) {
        out->add_slab_starts(piece->place.run.start);
        out->add_slab_counts(piece->place.run.count);
      }
      for (uint32_t g = run.start; g < run.start + run.count; ++g) {
        out->add_granule_hashes(piece->hashes[g - piece->place.run.start]);
      }
    }
    if (!tail) continue;
    const Piece* piece = FindTailLocked(layer, expert);
    if (piece == nullptr) {
      return lacking(!mine || attempt_->incoming.NamesTail(layer, expert),
                     fmt::format("layer {}, expert {}, tail is", layer, expert));
    }
    grant->pieces.push_back(TailOf(piece->place));
    out->add_tail_hashes(piece->tail());
    ++tails;
  }
  if (tails == request.tails_size()) return OkStatus();
  return {Code::kInvalid, fmt::format("pull of {} rows: the tail of row {} is out of range or out "
                                      "of order, or the experts have no tails",
                                      n, request.tails(tails))};
}

Result<mover::Shown> RankStore::ShowLocked(const mover::Grant& grant) {
  if (grant.kv.bytes > 0 && !grant.pieces.empty()) {
    return Status(Code::kInvalid, "pull by descriptor requests both pieces and KV");
  }
  const bool kv = grant.kv.bytes > 0;
  auto& window = kv ? memories_.kv_window : memories_.weights_window;
  if (window == nullptr) {
    auto made = mover::Window::Of(kv ? *memories_.devices.kv : *memories_.devices.weights);
    if (!made.ok()) return made.status();
    window = std::move(made).value();
  }
  mover::Shown out{window, {}};
  if (kv) out.extents.push_back({0, grant.kv.bytes});  // mapped as a whole
  for (const device::Memory& piece : grant.pieces) {
    // Of an interleaved slab everything is exported: the reader knows its layout.
    const uint64_t bytes =
        piece.shape == nullptr ? piece.bytes : piece.shape->units * piece.shape->unit_bytes();
    auto extents = memories_.banks->ExtentsOf({piece.device, piece.address, bytes});
    if (!extents.ok()) return extents.status();
    for (const device::Extent& extent : *extents) {
      device::Extent* const last = out.extents.empty() ? nullptr : &out.extents.back();
      if (last != nullptr && last->offset + last->length == extent.offset) {
        last->length += extent.length;
      } else {
        out.extents.push_back(extent);
      }
    }
  }
  return out;
}

// The source's side of a pull within this process.
Status RankStore::CopyOut(const std::string& token, std::span<const mover::Target> targets,
                          const std::function<void(uint64_t)>& done, const std::stop_token& stop) {
  const Status gone{Code::kUnavailable, "the source released its pieces"};
  const auto grant = options_.grants->Redeem(token, std::nullopt);
  if (!grant) return gone;
  std::vector<device::CopyOp> copies;
  std::vector<uint64_t> hashes(targets.size());
  size_t at = 0;  // index of the first target in `copies`
  uint64_t bytes = 0;
  const auto copy = [&]() -> Status {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    Status copied;
    // The pages stay while we read. `done` is called later, because it may wait for others.
    const bool there =
        grant->lease->Use([&] { copied = memories_.devices.weights->Copy(copies).Wait(); });
    if (!there) return gone;
    TANGRAM_RETURN_IF_ERROR(copied);
    for (const device::CopyOp& op : copies) {
      if (fault::Hit("stage.after_fetch") == fault::Action::kCorrupt) {
        TANGRAM_RETURN_IF_ERROR(Spoil(op.to));
        TANGRAM_RETURN_IF_ERROR(device::HashNow(op.to, op.hash));
      }
      if (hashes[at] != targets[at].hash) {
        return {Code::kCorrupt,
                fmt::format("unit {} of {} differs from its hash", at, targets.size())};
      }
      ++at;
      done(op.to.bytes);
    }
    copies.clear();
    bytes = 0;
    return OkStatus();
  };
  for (device::Memory from : grant->pieces) {
    // The grant's memory is a run of granules; targets are single granules.
    while (from.bytes > 0) {
      const size_t next = at + copies.size();
      if (next >= targets.size() || targets[next].to.bytes > from.bytes) {
        return {Code::kInternal, "pull does not match its grant"};
      }
      const device::Memory& to = targets[next].to;
      copies.push_back({to, from.Part(0, to.bytes), &hashes[next]});
      bytes += to.bytes;
      from = from.Part(to.bytes, from.bytes - to.bytes);
      if (bytes >= kCopiedTogether) TANGRAM_RETURN_IF_ERROR(copy());
    }
  }
  return copies.empty() ? OkStatus() : copy();
}

device::Memory RankStore::Granule(uint32_t layer, uint32_t expert, uint32_t granule) {
  const std::scoped_lock lock(mu_);
  const Piece* piece = FindLocked(layer, expert, {granule, 1});
  return piece == nullptr ? device::Memory() : BytesOf(piece->place, granule, 1);
}

device::Memory RankStore::Tail(uint32_t layer, uint32_t expert) {
  const std::scoped_lock lock(mu_);
  const Piece* piece = FindTailLocked(layer, expert);
  return piece == nullptr ? device::Memory() : TailOf(piece->place);
}

}  // namespace tangram::store
