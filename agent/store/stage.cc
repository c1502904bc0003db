// RankStore::Stage: brings every piece of the attempt, nearest and surest first, and
// verifies each granule.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>

#include "agent/base/fault.h"
#include "agent/store/rank_store.h"

namespace tangram::store {
namespace {

using layout::PartProof;

const fault::Point kBeforeFetch("stage.before_fetch", fault::kErrors);
const fault::Point kBeforeVerify("stage.before_verify", fault::kErrors);

// Between two asks of a source that has not verified its own copy yet.
constexpr std::chrono::milliseconds kAskAgain{20};

struct BySource {
  std::vector<PartProof::Move> moves;
  std::vector<uint32_t> dense_parts;
};

// A fault: the first byte is another.
Status Spoil(const device::Memory& memory) {
  std::byte byte{};
  const device::CopyOp out{device::Memory::Own({&byte, 1}), memory.Part(0, 1)};
  TANGRAM_RETURN_IF_ERROR(memory.device->Copy({&out, 1}).Wait());
  byte ^= std::byte{1};
  const device::CopyOp in{memory.Part(0, 1), device::Memory::Own({&byte, 1})};
  return memory.device->Copy({&in, 1}).Wait();
}

void Sleep(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mu;
  std::condition_variable_any wake;
  std::unique_lock lock(mu);
  wake.wait_for(lock, stop, time, [] { return false; });
}

}  // namespace

void RankStore::MarkVerified(const PartProof::Move& move, const std::vector<uint64_t>& hashes) {
  // Before the piece can be committed, so that no layout holds what the file does not know.
  if (hashes_) {
    WarnOnce(hashes_->Note(move.piece.layer, move.piece.expert, move.run.start, hashes));
  }
  const std::scoped_lock lock(mu_);
  Piece* piece = attempt_->incoming.At(layout::KeyOf(move.piece));
  std::copy(hashes.begin(), hashes.end(),
            piece->hashes.begin() + (move.run.start - move.piece.run.start));
}

// What cannot be noted does not stop the world; the next agent will not take it over.
void RankStore::WarnOnce(const Status& status) {
  if (!status.ok() && !warned_.exchange(true)) {
    spdlog::error("{}; if this agent dies, the next one cannot go on with its memory",
                  status.message());
  }
}

void RankStore::MarkDense(uint32_t part, const std::vector<uint64_t>& hashes) {
  size_t i = 0;
  for (size_t t = part; hashes_ && t < dense_hashes_.size(); t += kDenseParts) {
    WarnOnce(hashes_->NoteDense(t, hashes[i++]));
  }
  const std::scoped_lock lock(mu_);
  i = 0;
  for (size_t t = part; t < dense_hashes_.size(); t += kDenseParts) dense_hashes_[t] = hashes[i++];
  dense_here_[part] = true;
}

Status RankStore::CopyHeld(StageProgress* progress, std::stop_token stop) {
  for (const PartProof::Move& move : attempt_->proof.copies) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    device::Memory from;
    std::vector<uint64_t> hashes;
    {
      const std::scoped_lock lock(mu_);
      const Piece& held = current_[move.held];
      from = BytesOf(held.place, move.run.start, move.run.count);
      const auto first = held.hashes.begin() + (move.run.start - held.place.run.start);
      hashes.assign(first, first + move.run.count);
    }
    const uint64_t unit = geometry().granule_bytes();
    std::vector<uint64_t> arrived(move.run.count);
    std::vector<device::CopyOp> copies;
    for (uint32_t i = 0; i < move.run.count; ++i) {
      copies.push_back(
          {BytesOf(move.piece, move.run.start + i, 1), from.Part(i * unit, unit), &arrived[i]});
    }
    TANGRAM_RETURN_IF_ERROR(memories_.devices.weights->Copy(copies).Wait());
    if (const auto bad = std::mismatch(arrived.begin(), arrived.end(), hashes.begin()).first;
        bad != arrived.end()) {
      return {Code::kCorrupt,
              fmt::format("layer {}, expert {}, granule {}: the copy that this rank holds has "
                          "changed since it was verified",
                          move.piece.layer, move.piece.expert,
                          move.run.start + (bad - arrived.begin()))};
    }
    MarkVerified(move, hashes);
    progress->local += from.bytes;
  }
  return OkStatus();
}

Status RankStore::ReadCheckpoint(const std::vector<PartProof::Move>& moves,
                                 const std::vector<uint32_t>& dense_parts, StageProgress* progress,
                                 std::stop_token stop) {
  const loader::Checkpoint& checkpoint = *options_.checkpoint;
  const uint64_t unit = geometry().granule_bytes();
  for (const PartProof::Move& move : moves) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    const device::Memory to = BytesOf(move.piece, move.run.start, move.run.count);
    TANGRAM_RETURN_IF_ERROR(device::Fill(to, [&](std::span<std::byte> bytes) {
      return checkpoint.ReadGranules(move.piece.layer, move.piece.expert, move.run, bytes);
    }));
    std::vector<uint64_t> hashes(move.run.count);
    std::vector<device::HashOp> ops;
    for (uint32_t i = 0; i < move.run.count; ++i)
      ops.push_back({to.Part(i * unit, unit), &hashes[i]});
    TANGRAM_RETURN_IF_ERROR(memories_.devices.weights->Hash(ops).Wait());
    MarkVerified(move, hashes);
    progress->checkpoint += to.bytes;
    progress->done += to.bytes;
  }
  for (const uint32_t part : dense_parts) {
    std::vector<uint64_t> hashes;
    for (size_t t = part; t < checkpoint.dense().size(); t += kDenseParts) {
      const device::Memory to = DenseBytes(t);
      TANGRAM_RETURN_IF_ERROR(device::Fill(
          to, [&](std::span<std::byte> bytes) { return checkpoint.ReadDense(t, bytes); }));
      TANGRAM_RETURN_IF_ERROR(device::HashNow(to, &hashes.emplace_back()));
      progress->checkpoint += to.bytes;
      progress->done += to.bytes;
    }
    MarkDense(part, hashes);
  }
  return OkStatus();
}

Status RankStore::PullFrom(const v1::Header& header, const v1::PeerAddress& peer,
                           const std::vector<PartProof::Move>& moves,
                           const std::vector<uint32_t>& dense_parts, StageProgress* progress,
                           std::stop_token stop) {
  RankStore* sibling = options_.sibling(peer.member());
  v1::OpenPullRequest request;
  *request.mutable_header() = header;
  request.set_rank(peer.rank());
  request.set_member(peer.member());
  for (const PartProof::Move& move : moves) {
    request.mutable_pieces()->add_layer(move.piece.layer);
    request.mutable_pieces()->add_expert(move.piece.expert);
    request.mutable_pieces()->add_granule_start(move.run.start);
    request.mutable_pieces()->add_granule_count(move.run.count);
  }
  for (const uint32_t part : dense_parts) request.add_dense_parts(part);
  if (fault::Hit("stage.before_fetch") == fault::Action::kError) {
    return {Code::kUnavailable, "fault point stage.before_fetch"};
  }
  // A rank of this process is asked in the same words; only the bytes take a shorter way.
  const auto opened =
      sibling != nullptr ? sibling->OpenPull(request, "") : options_.opener(peer.agent(), request);
  if (!opened.ok()) return opened.status();

  std::vector<mover::Target> targets;
  int hash = 0;
  for (const PartProof::Move& move : moves) {
    for (uint32_t g = move.run.start; g < move.run.start + move.run.count; ++g) {
      if (hash >= opened->granule_hashes_size())
        return {Code::kInvalid, "the source gave fewer hashes than granules"};
      targets.push_back({BytesOf(move.piece, g, 1), opened->granule_hashes(hash++)});
    }
  }
  hash = 0;
  for (const uint32_t part : dense_parts) {
    for (size_t t = part; t < dense_hashes_.size(); t += kDenseParts) {
      if (hash >= opened->dense_hashes_size())
        return {Code::kInvalid, "the source gave fewer hashes than dense tensors"};
      targets.push_back({DenseBytes(t), opened->dense_hashes(hash++)});
    }
  }
  const auto done = [&](uint64_t bytes) {
    (sibling != nullptr ? progress->shared : progress->tcp) += bytes;
    progress->done += bytes;
  };
  if (sibling != nullptr) {
    TANGRAM_RETURN_IF_ERROR(sibling->CopyOut(opened->token(), targets, done));
  } else {
    TANGRAM_RETURN_IF_ERROR(
        mover::PullPieces(options_.credentials, peer.data(), opened->token(), targets, stop, done));
  }
  size_t at = 0;
  for (const PartProof::Move& move : moves) {
    std::vector<uint64_t> hashes;
    for (uint32_t i = 0; i < move.run.count; ++i) hashes.push_back(targets[at++].hash);
    MarkVerified(move, hashes);
  }
  for (const uint32_t part : dense_parts) {
    std::vector<uint64_t> hashes;
    for (size_t t = part; t < dense_hashes_.size(); t += kDenseParts)
      hashes.push_back(targets[at++].hash);
    MarkDense(part, hashes);
  }
  return OkStatus();
}

Status RankStore::CopyOut(const std::string& token, std::span<const mover::Target> targets,
                          const std::function<void(uint64_t)>& done) {
  const std::shared_lock reading(reading_);  // the pages stay while we read
  const auto grant = options_.grants->Redeem(token, std::nullopt);
  if (!grant) return {Code::kUnavailable, "the source let go of its pieces"};
  size_t at = 0;
  for (device::Memory from : grant->pieces) {
    // Memory of the grant is a run of granules; the targets are single ones.
    while (from.bytes > 0) {
      if (at >= targets.size() || targets[at].to.bytes > from.bytes) {
        return {Code::kInternal, "a pull and its grant do not match"};
      }
      const mover::Target& target = targets[at++];
      uint64_t hash = 0;
      const device::CopyOp op{target.to, from.Part(0, target.to.bytes), &hash};
      TANGRAM_RETURN_IF_ERROR(memories_.devices.weights->Copy({&op, 1}).Wait());
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

Status RankStore::PullWithRetry(const v1::Header& header, const v1::PeerAddress& peer,
                                const std::vector<PartProof::Move>& moves,
                                const std::vector<uint32_t>& dense_parts, StageProgress* progress,
                                std::stop_token stop) {
  int left = 2;  // a source that fails twice is not asked again
  while (true) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    const uint64_t before = progress->done;
    const Status status = PullFrom(header, peer, moves, dense_parts, progress, stop);
    if (status.ok()) return status;
    progress->done = before;
    if (status.code() == Code::kCorrupt) ++progress->corrupt;
    if (status.code() == Code::kNotHeld) {
      Sleep(kAskAgain, stop);
      continue;
    }
    if (stop.stop_requested() ||
        (status.code() != Code::kUnavailable && status.code() != Code::kCorrupt))
      return status;
    spdlog::warn("attempt {}: pull of {} runs from {} failed: {}", header.attempt(), moves.size(),
                 peer.member(), status.message());
    if (--left > 0) continue;
    // The checkpoint has every piece of this revision.
    const Status read = ReadCheckpoint(moves, dense_parts, progress, stop);
    if (read.ok()) return read;
    return {status.code(), fmt::format("{} (and the checkpoint cannot stand in: {})",
                                       status.message(), read.message())};
  }
}

Status RankStore::Stage(const v1::Header& header, const std::vector<v1::PeerAddress>& peers,
                        StageProgress* progress, std::stop_token stop) {
  // attempt_ itself changes only by Commit and Abort, which the executor calls when this is over.
  std::map<uint32_t, BySource> work;
  {
    const std::scoped_lock lock(mu_);
    if (!attempt_ || attempt_->committed) return {Code::kWrongPhase, "nothing is prepared"};
    for (const PartProof::Move& move : attempt_->proof.fetches) {
      work[move.source].moves.push_back(move);
      progress->total += move.run.count * geometry().granule_bytes();
    }
    for (uint32_t part = 0; part < attempt_->dense_source.size(); ++part) {
      work[attempt_->dense_source[part]].dense_parts.push_back(part);
      for (size_t t = part; t < dense_hashes_.size(); t += kDenseParts) {
        progress->total += options_.checkpoint->dense()[t].info.bytes;
      }
    }
  }
  // What only this rank reads comes first: others may wait for it.
  if (const auto it = work.find(0); it != work.end()) {
    TANGRAM_RETURN_IF_ERROR(
        ReadCheckpoint(it->second.moves, it->second.dense_parts, progress, stop));
  }
  TANGRAM_RETURN_IF_ERROR(CopyHeld(progress, stop));
  for (const auto& [source, job] : work) {
    if (source == 0) continue;
    const auto peer =
        std::find_if(peers.begin(), peers.end(),
                     [&, want = source - 1](const v1::PeerAddress& p) { return p.rank() == want; });
    if (peer == peers.end())
      return {Code::kBadPlan, fmt::format("no address for source rank {}", source - 1)};
    TANGRAM_RETURN_IF_ERROR(
        PullWithRetry(header, *peer, job.moves, job.dense_parts, progress, stop));
  }
  TANGRAM_RETURN_IF_ERROR(fault::Check("stage.before_verify"));
  {
    const std::scoped_lock lock(mu_);
    TANGRAM_RETURN_IF_ERROR(CheckVerifiedLocked());
  }
  return OkStatus();
}

void RankStore::WarmKv(const v1::Header& header, const std::vector<v1::PeerAddress>& peers) {
  const std::scoped_lock lock(kv_mu_);
  for (const v1::PeerAddress& peer : peers) {
    if (options_.sibling(peer.member()) != nullptr) continue;
    if (Status status = readers_.Warm(header, peer); !status.ok()) {
      spdlog::warn("attempt {}: KV of {} is not reachable yet: {}", header.attempt(), peer.member(),
                   status.message());
    }
  }
}

}  // namespace tangram::store
