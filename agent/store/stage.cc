// RankStore::Stage: runs the attempt's missing pieces as a mover job.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>

#include "agent/base/fault.h"
#include "agent/layout/owners.h"
#include "agent/store/rank_store.h"
#include "agent/store/sources.h"

namespace tangram::store {
namespace {

using layout::PartProof;

const fault::Point kBeforeVerify("stage.before_verify", fault::kErrors);

}  // namespace

void RankStore::MarkVerified(const PartProof::Move& move, const std::vector<uint64_t>& hashes) {
  // Before the piece can be committed, so that the file knows everything that a layout holds.
  const std::span granules = std::span(hashes).first(move.run.count);
  if (hashes_) {
    const uint32_t layer = move.piece.layer, expert = move.piece.expert;
    if (!granules.empty()) WarnOnce(hashes_->Note(layer, expert, move.run.start, granules));
    if (move.tail) WarnOnce(hashes_->NoteTail(layer, expert, hashes.back()));
  }
  const std::scoped_lock lock(mu_);
  Piece* piece = attempt_->incoming.At(layout::KeyOf(move.piece));
  std::copy(granules.begin(), granules.end(),
            piece->hashes.begin() + (move.run.start - move.piece.run.start));
  if (move.tail) piece->hashes.back() = hashes.back();
}

// A failed write does not stop the world; the next agent cannot resume this memory.
void RankStore::WarnOnce(const Status& status) {
  if (!status.ok() && !warned_.exchange(true)) {
    spdlog::error("hash not recorded, a restarted agent cannot resume this memory error=\"{}\"",
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
  ++held_version_;
}

std::vector<uint32_t> RankStore::PeersInOrder(const std::vector<v1::PeerAddress>& peers,
                                              uint32_t mine) const {
  std::vector<uint32_t> out(peers.size());
  std::iota(out.begin(), out.end(), 0);
  // Ranks of this pod first, then those with mapped memory, of this node, of this NVLink domain, on
  // the same network of NICs, then others. Within each class a rank starts with those after it, so
  // that not all of them queue at one.
  const auto same = [](const std::string& mine_is, const std::string& is) {
    return !is.empty() && is == mine_is;
  };
  std::vector<std::pair<int, bool>> place;  // evaluated once: finding a sibling takes locks
  for (const v1::PeerAddress& peer : peers) {
    int distance = 0;
    if (options_.sibling(peer.member()) == nullptr) {
      distance = !options_.transports->For(peer).capabilities().network ? 1
                 : same(options_.node, peer.node())                     ? 2
                 : same(options_.fabric, peer.nvlink_domain())          ? 3
                 : same(options_.rail, peer.rail())                     ? 4
                                                                        : 5;
    }
    place.emplace_back(distance, peer.rank() < mine);
  }
  std::stable_sort(out.begin(), out.end(),
                   [&](uint32_t a, uint32_t b) { return place[a] < place[b]; });
  return out;
}

Status RankStore::Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
                        std::stop_token stop) {
  // Only Commit and Abort change attempt_, and the executor calls them after this.
  constexpr uint32_t kCheckpoint = 0, kHeld = 1, kRanks = 2;  // in query order
  std::vector<Wanted> wanted;
  std::vector<mover::Range> job;
  CheckpointSource checkpoint(this, &wanted);
  HeldSource held(this, &wanted);
  std::vector<std::unique_ptr<RankSource>> ranks;
  std::vector<mover::Source*> sources{&checkpoint, &held};
  size_t copies = 0;  // the first `copies` ranges are resident in other places
  std::optional<layout::Owners> before;
  if (origins.before != nullptr) before.emplace(*origins.before, geometry());
  uint32_t mine = 0;
  {
    const std::scoped_lock lock(mu_);
    if (!attempt_ || attempt_->committed) return {Code::kWrongPhase, "no attempt is prepared"};
    mine = static_cast<uint32_t>(std::max(attempt_->rank, 0));
  }
  // Not under mu_: finding a sibling checks the ids of all ranks of the process, including this
  // one.
  std::map<uint32_t, uint32_t> by_rank;  // of the target
  std::map<std::string, uint32_t> by_member;
  for (const uint32_t p : PeersInOrder(origins.peers, mine)) {
    const auto source = static_cast<uint32_t>(kRanks + ranks.size());
    by_rank[origins.peers[p].rank()] = by_member[origins.peers[p].member()] = source;
    ranks.push_back(std::make_unique<RankSource>(this, &wanted, header, origins.peers[p]));
    sources.push_back(ranks.back().get());
  }
  std::vector<uint32_t> dense_holders;  // of the active layout, in the order of the sources
  for (size_t i = 0; before && i < ranks.size(); ++i) {
    const int32_t rank = layout::RankOf(*origins.before, ranks[i]->name());
    if (rank < 0 || !layout::HoldsDense(*origins.before, static_cast<uint32_t>(rank))) continue;
    dense_holders.push_back(static_cast<uint32_t>(kRanks + i));
  }
  {
    const std::scoped_lock lock(mu_);
    const auto add = [&](const PartProof::Move& move, std::optional<uint32_t> first) {
      mover::Range& range = job.emplace_back();
      for (uint32_t g = 0; g < move.run.count; ++g) {
        range.units.push_back(BytesOf(move.piece, move.run.start + g, 1));
      }
      if (move.tail) range.units.push_back(TailOf(move.piece));
      wanted.push_back({&move, 0});
      if (first) range.sources.push_back(*first);
      if (first == kCheckpoint) return;
      // Other holders in the active layout are alternatives; the checkpoint has everything.
      if (before) {
        const auto planned = static_cast<std::ptrdiff_t>(range.sources.size());
        for (const uint32_t r : before->Holders(move.piece.layer, move.piece.expert, move.run)) {
          const auto it = by_member.find(origins.before->members(static_cast<int>(r)).id());
          if (it != by_member.end() && it->second != first) range.sources.push_back(it->second);
        }
        std::sort(range.sources.begin() + planned, range.sources.end());  // nearest first
      }
      range.sources.push_back(kCheckpoint);
    };
    const auto planned = [&](uint32_t source) -> std::optional<uint32_t> {
      if (source == 0) return kCheckpoint;
      const auto it = by_rank.find(source - 1);
      return it == by_rank.end() ? std::nullopt : std::optional(it->second);
    };
    const auto unknown = [](uint32_t source) {
      return Status{Code::kBadPlan,
                    fmt::format("the plan has no address of source rank {}", source - 1)};
    };
    for (const PartProof::Move& move : attempt_->proof.copies) add(move, kHeld);
    copies = job.size();
    // Dense weights first: all other ranks wait for each part's one reader.
    for (uint32_t part = 0; part < attempt_->dense_source.size(); ++part) {
      const auto source = planned(attempt_->dense_source[part]);
      if (!source) return unknown(attempt_->dense_source[part]);
      mover::Range& range = job.emplace_back();
      for (size_t t = part; t < dense_hashes_.size(); t += kDenseParts) {
        range.units.push_back(DenseBytes(t));
      }
      range.sources = {*source};
      if (*source != kCheckpoint) {
        for (const uint32_t other : dense_holders) {
          if (other != *source) range.sources.push_back(other);
        }
        range.sources.push_back(kCheckpoint);
      }
      progress->total += range.bytes();
      wanted.push_back({nullptr, part});
    }
    // Each rank begins elsewhere, so that not all read the same place of one file, and ranks of a
    // process that share experts meet only when all of them are read.
    const std::vector<PartProof::Move>& fetches = attempt_->proof.fetches;
    const size_t ranks = std::max<size_t>(origins.peers.size(), 1);
    const size_t begin = fetches.size() * (mine % ranks) / ranks;
    for (size_t i = 0; i < fetches.size(); ++i) {
      const PartProof::Move& move = fetches[(begin + i) % fetches.size()];
      const auto source = planned(move.source);
      if (!source) return unknown(move.source);
      add(move, source);
      progress->total += job.back().bytes();
    }
  }
  std::vector<size_t> read;
  for (size_t i = 0; i < job.size(); ++i) {
    if (job[i].sources.front() == kCheckpoint) read.push_back(i);
  }
  checkpoint.Enrol(job, read);
  const auto arrived = [&](const mover::Source& source, size_t i,
                           const std::vector<uint64_t>& hashes) {
    if (wanted[i].move != nullptr) {
      MarkVerified(*wanted[i].move, hashes);
    } else {
      MarkDense(wanted[i].dense_part, hashes);
    }
    const uint64_t bytes = job[i].bytes();
    if (&source == &checkpoint) {
      progress->checkpoint += bytes;
    } else if (&source == &held) {
      progress->local += bytes;
    } else {
      const auto& rank = static_cast<const RankSource&>(source);
      const RankSource::By by = rank.by();
      (by == RankSource::By::kMemory ? progress->shared
       : by == RankSource::By::kWire ? progress->wire
                                     : progress->tcp) += bytes;
      progress->weights_by_way.Add(rank.way(), bytes);
    }
    if (i >= copies) progress->done += bytes;
  };
  const auto failed = [&](const mover::Source& source, const Status& status) {
    if (status.code() == Code::kCorrupt) ++progress->corrupt;
    if (stop.stop_requested()) return;
    spdlog::warn("fetch failed attempt={} source=\"{}\" error=\"{}\"", header.attempt(),
                 source.name(), status.message());
  };
  mover::Limits limits{.after_failure = options_.after_failure};
  if (origins.serving && (origins.share || options_.staging_share < 1)) {
    limits.share = [most = options_.staging_share, asked = origins.share] {
      return asked ? std::min(most, asked()) : most;
    };
  }
  TANGRAM_RETURN_IF_ERROR(mover::Bring(job, sources, limits, arrived, failed, stop));
  TANGRAM_RETURN_IF_ERROR(fault::Check("stage.before_verify"));
  const std::scoped_lock lock(mu_);
  progress->peak =
      memories_.devices.weights->total_bytes() - memories_.devices.weights->free_bytes();
  return CheckVerifiedLocked();
}

}  // namespace tangram::store
