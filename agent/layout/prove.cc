#include "agent/layout/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

namespace tangram::layout {
namespace {

Status Bad(std::string message) { return {Code::kBadPlan, "plan: " + std::move(message)}; }

using Expert = std::pair<uint32_t, uint32_t>;  // layer, expert
Expert ExpertOf(const PlacedPiece& piece) { return {piece.layer, piece.expert}; }

// A piece of the rank's target that is not in place, and its granules with a source so far.
struct Cover {
  size_t wanted = 0;                // index of the piece
  std::vector<bool> here;           // by granule of the run: has a source
  bool tail = false;                // comes with a copy
  std::optional<size_t> brings_it;  // otherwise comes with this fetch
};

// Bytes of a bank, and the piece that begins there.
struct Range {
  uint32_t bank;
  uint64_t start, end;
  const PlacedPiece* piece;
};

// The first range that overlaps the next one, in order of bank and start; null: none.
const Range* Overlapping(std::vector<Range>* ranges) {
  std::ranges::sort(*ranges, [](const Range& a, const Range& b) {
    return std::pair(a.bank, a.start) < std::pair(b.bank, b.start);
  });
  const auto it = std::ranges::adjacent_find(
      *ranges, [](const Range& a, const Range& b) { return a.bank == b.bank && b.start < a.end; });
  return it == ranges->end() ? nullptr : &*it;
}

// Most pieces stay in place in most flips of a run. One walk over both lists finds these; they have
// no Cover.
class Prover {
 public:
  Prover(const GeometryView& geometry, const v1::Layout& target, int32_t rank,
         const std::vector<PlacedPiece>& held)
      : geometry_(geometry), target_(target), rank_(rank), held_(held) {
    if (rank >= 0) wanted_ = PiecesOf(target, geometry, static_cast<uint32_t>(rank));
    if (!std::ranges::is_sorted(wanted_, InOrder)) std::ranges::stable_sort(wanted_, InOrder);
    held_of_.resize(held.size());
    std::iota(held_of_.begin(), held_of_.end(), 0);
    if (!std::ranges::is_sorted(held_, InOrder)) {
      std::ranges::stable_sort(held_of_, {}, [&](uint32_t i) { return KeyOf(held_[i]); });
    }
  }

  Result<PartProof> Prove(bool holds_dense, const v1::RankPart& part) {
    KeepInPlace();
    TANGRAM_RETURN_IF_ERROR(TakeCopies(part.copies()));
    TANGRAM_RETURN_IF_ERROR(TakeFetches(part.fetches()));
    TANGRAM_RETURN_IF_ERROR(CheckComplete());
    if (geometry_.tail_bytes() > 0) GiveTails();
    TANGRAM_RETURN_IF_ERROR(CheckHazards());
    TANGRAM_RETURN_IF_ERROR(CheckDense(holds_dense, part.dense()));
    TANGRAM_RETURN_IF_ERROR(CheckMemory(holds_dense, part));
    return std::move(proof_);
  }

 private:
  void KeepInPlace() {
    proof_.stays.assign(held_.size(), false);
    std::vector<bool> in_place(wanted_.size(), false);
    auto wanted = wanted_.begin();
    for (const uint32_t i : held_of_) {
      while (wanted != wanted_.end() && InOrder(*wanted, held_[i])) ++wanted;
      for (auto same = wanted; same != wanted_.end() && KeyOf(*same) == KeyOf(held_[i]); ++same) {
        if (*same == held_[i]) in_place[same - wanted_.begin()] = proof_.stays[i] = true;
      }
    }
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (in_place[i]) continue;
      covers_.push_back({i, std::vector<bool>(wanted_[i].run.count, false), false, std::nullopt});
    }
  }

  const PlacedPiece& PieceOf(const Cover& cover) const { return wanted_[cover.wanted]; }

  // The part of a sorted list that belongs to the expert.
  template <typename T, typename ExpertOfOne>
  static std::span<const T> Of(Expert expert, const std::vector<T>& list, ExpertOfOne of) {
    const auto first = std::partition_point(list.begin(), list.end(),
                                            [&](const T& one) { return of(one) < expert; });
    const auto last =
        std::partition_point(first, list.end(), [&](const T& one) { return of(one) == expert; });
    return {first, last};
  }

  std::span<const PlacedPiece> WantedOf(Expert expert) const {
    return Of(expert, wanted_, ExpertOf);
  }

  // Indices of `held_`.
  std::span<const uint32_t> HeldOf(Expert expert) const {
    return Of(expert, held_of_, [&](uint32_t i) { return ExpertOf(held_[i]); });
  }

  // Marks the run as having a source, once; `what` names the column in errors.
  Result<Cover*> Bring(const char* what, uint32_t layer, uint32_t expert, Run run) {
    const auto where = [&] {
      return fmt::format("{} of layer {}, expert {}, granules {}..{}", what, layer, expert,
                         run.start, static_cast<uint64_t>(run.start) + run.count);
    };
    const std::span<const PlacedPiece> pieces = WantedOf({layer, expert});
    if (pieces.empty()) return Bad(where() + ": the target does not give this expert to the rank");
    // A rank at several positions has several pieces of one expert.
    const auto piece = std::ranges::find_if(pieces, [&](const PlacedPiece& one) {
      return run.count > 0 && run.start >= one.run.start &&
             uint64_t{run.start} + run.count <= uint64_t{one.run.start} + one.run.count;
    });
    if (piece == pieces.end()) {
      const Run whole = pieces.front().run;
      return Bad(fmt::format("{}: the rank's shard is {}..{}", where(), whole.start,
                             whole.start + whole.count));
    }
    const auto twice = [&](uint32_t granule) {
      return Bad(fmt::format("{}: granule {} comes twice", where(), granule));
    };
    const auto index = static_cast<size_t>(&*piece - wanted_.data());
    const auto found = std::ranges::lower_bound(covers_, index, {}, &Cover::wanted);
    if (found == covers_.end() || found->wanted != index) return twice(run.start);
    Cover& cover = *found;
    for (uint32_t granule = run.start; granule < run.start + run.count; ++granule) {
      if (cover.here[granule - piece->run.start]) return twice(granule);
      cover.here[granule - piece->run.start] = true;
    }
    return &cover;
  }

  Status TakeCopies(const v1::LocalCopies& copies) {
    const int n = copies.layer_size();
    if (copies.expert_size() != n || copies.granule_start_size() != n ||
        copies.granule_count_size() != n) {
      return Bad("columns of copies differ in length");
    }
    for (int i = 0; i < n; ++i) {
      const Run run{copies.granule_start(i), copies.granule_count(i)};
      Result<Cover*> cover = Bring("copy", copies.layer(i), copies.expert(i), run);
      if (!cover.ok()) return cover.status();
      const auto held = HeldOf({copies.layer(i), copies.expert(i)});
      const auto source = std::ranges::find_if(held, [&](uint32_t index) {
        const Run have = held_[index].run;
        return have.start <= run.start && run.start + run.count <= have.start + have.count;
      });
      if (source == held.end()) {
        return Bad(
            fmt::format("copy of layer {}, expert {}, granules {}..{}: the rank does not hold them",
                        copies.layer(i), copies.expert(i), run.start, run.start + run.count));
      }
      const bool tail = geometry_.tail_bytes() > 0 && !std::exchange((*cover)->tail, true);
      proof_.copies.push_back({PieceOf(**cover), run, 0, *source, tail});
    }
    return OkStatus();
  }

  Status TakeFetches(const v1::Fetches& fetches) {
    const int n = fetches.layer_size();
    if (fetches.expert_size() != n || fetches.granule_start_size() != n ||
        fetches.granule_count_size() != n || fetches.source_size() != n) {
      return Bad("columns of fetches differ in length");
    }
    for (int i = 0; i < n; ++i) {
      const Run run{fetches.granule_start(i), fetches.granule_count(i)};
      Result<Cover*> cover = Bring("fetch", fetches.layer(i), fetches.expert(i), run);
      if (!cover.ok()) return cover.status();
      const uint32_t source = fetches.source(i);
      if (source > static_cast<uint32_t>(target_.members_size()) ||
          source == static_cast<uint32_t>(rank_) + 1) {
        return Bad(fmt::format(
            "fetch of layer {}, expert {}: source {} of {} ranks (0 is the checkpoint, own rank is "
            "{})",
            fetches.layer(i), fetches.expert(i), source, target_.members_size(), rank_ + 1));
      }
      std::optional<size_t>& brings_it = (*cover)->brings_it;
      if (!brings_it || (source == 0 && proof_.fetches[*brings_it].source != 0)) {
        brings_it = proof_.fetches.size();
      }
      proof_.fetches.push_back({PieceOf(**cover), run, source, 0});
    }
    return OkStatus();
  }

  // As the planner counts: any held piece of the expert provides its tail.
  void GiveTails() {
    for (const Cover& cover : covers_) {
      if (cover.tail) continue;
      const PlacedPiece& piece = PieceOf(cover);
      const auto held = HeldOf(ExpertOf(piece));
      if (held.empty()) {
        proof_.fetches[*cover.brings_it].tail = true;
      } else {
        proof_.copies.push_back({piece, {piece.run.start, 0}, 0, held.front(), true});
      }
    }
  }

  Status CheckComplete() const {
    for (const Cover& cover : covers_) {
      const auto gap = std::find(cover.here.begin(), cover.here.end(), false);
      if (gap == cover.here.end()) continue;
      const PlacedPiece& piece = PieceOf(cover);
      return Bad(fmt::format("granule {} of layer {}, expert {} has no source",
                             piece.run.start + (gap - cover.here.begin()), piece.layer,
                             piece.expert));
    }
    return OkStatus();
  }

  // No incoming piece may overlap a held one: a sorted sweep over both. Consecutive pieces in a
  // bank are swept as one range; only if ranges overlap, each piece alone.
  Status CheckHazards() const {
    std::vector<const PlacedPiece*> all;
    for (const uint32_t i : held_of_) all.push_back(&held_[i]);
    for (const Cover& cover : covers_) all.push_back(&PieceOf(cover));
    std::vector<Range> merged, each;
    for (const PlacedPiece* piece : all) {
      const Range range{piece->bank, piece->offset, piece->offset + piece->bytes, piece};
      if (!merged.empty() && merged.back().bank == range.bank && merged.back().end <= range.start) {
        merged.back().end = range.end;
      } else {
        merged.push_back(range);
      }
    }
    if (Overlapping(&merged) == nullptr) return OkStatus();
    for (const PlacedPiece* piece : all) {
      each.push_back({piece->bank, piece->offset, piece->offset + piece->bytes, piece});
    }
    const Range* over = Overlapping(&each);
    if (over == nullptr) return OkStatus();
    const PlacedPiece &first = *over[0].piece, &second = *over[1].piece;
    return Bad(fmt::format(
        "bank {}: layer {} expert {} and layer {} expert {} lie over each other at byte {}",
        first.bank, first.layer, first.expert, second.layer, second.expert, over[1].start));
  }

  Status CheckDense(bool holds_dense, const v1::DenseFetch& dense) {
    const bool wants = rank_ >= 0 && HoldsDense(target_, static_cast<uint32_t>(rank_));
    const int parts = dense.source_by_part_size();
    if (!wants || holds_dense) {
      return parts == 0 ? OkStatus()
                        : Bad("dense weights are fetched that the rank holds or does not need");
    }
    if (parts != 16)
      return Bad(fmt::format("dense weights come in 16 parts, the plan names {}", parts));
    for (const uint32_t source : dense.source_by_part()) {
      if (source > static_cast<uint32_t>(target_.members_size()) ||
          source == static_cast<uint32_t>(rank_) + 1) {
        return Bad(fmt::format("dense source {} of {} ranks", source, target_.members_size()));
      }
    }
    proof_.brings_dense = true;
    return OkStatus();
  }

  Status CheckMemory(bool holds_dense, const v1::RankPart& part) {
    for (const Cover& cover : covers_) proof_.incoming.push_back(PieceOf(cover));
    std::vector<PlacedPiece> all(held_);
    all.insert(all.end(), proof_.incoming.begin(), proof_.incoming.end());
    const uint64_t page = geometry_.page_bytes();
    const uint64_t dense = RoundUp(geometry_.proto().dense_bytes(), page) / page;
    const bool dense_after = rank_ >= 0 && HoldsDense(target_, static_cast<uint32_t>(rank_));
    proof_.peak_pages = PagesTouched(all, geometry_) + (holds_dense || dense_after ? dense : 0);
    proof_.steady_pages = PagesTouched(wanted_, geometry_) + (dense_after ? dense : 0);
    if (proof_.peak_pages * page > part.peak_bytes() ||
        proof_.steady_pages * page != part.steady_bytes()) {
      return Bad(fmt::format(
          "memory: the part declares peak {} and steady {} bytes, its pieces need {} and {}",
          part.peak_bytes(), part.steady_bytes(), proof_.peak_pages * page,
          proof_.steady_pages * page));
    }
    return OkStatus();
  }

  const GeometryView& geometry_;
  const v1::Layout& target_;
  const int32_t rank_;
  const std::vector<PlacedPiece>& held_;
  std::vector<PlacedPiece> wanted_;  // pieces of the target, in order
  std::vector<uint32_t> held_of_;    // indices of `held_`, in order of the pieces
  std::vector<Cover> covers_;        // in order of `wanted_`
  PartProof proof_;
};

}  // namespace

Result<PartProof> ProvePart(const GeometryView& geometry, const v1::Layout& target, int32_t rank,
                            const std::vector<PlacedPiece>& held, bool holds_dense,
                            const v1::RankPart& part) {
  return Prover(geometry, target, rank, held).Prove(holds_dense, part);
}

}  // namespace tangram::layout
