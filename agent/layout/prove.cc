#include "agent/layout/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

namespace tangram::layout {
namespace {

using Expert = uint64_t;  // layer << 32 | expert
Expert ExpertOf(uint32_t layer, uint32_t expert) {
  return static_cast<Expert>(layer) << 32 | expert;
}

Status Bad(std::string message) { return {Code::kBadPlan, "plan: " + std::move(message)}; }

// A piece of the rank's target, and which of its granules are still to come.
struct Cover {
  Expert expert() const { return ExpertOf(piece.layer, piece.expert); }

  PlacedPiece piece;
  std::vector<bool> here;  // by granule of the run; empty where the piece is in place
  bool in_place = false;
  bool tail = false;                // comes with a copy
  std::optional<size_t> brings_it;  // else: with this fetch
};

// Order of covers, and of indices with their expert.
struct ByExpert {
  static Expert Of(const Cover& cover) { return cover.expert(); }
  static Expert Of(const std::pair<Expert, uint32_t>& entry) { return entry.first; }
  static Expert Of(Expert expert) { return expert; }
  bool operator()(const auto& a, const auto& b) const { return Of(a) < Of(b); }
};

class Prover {
 public:
  Prover(const GeometryView& geometry, const v1::Layout& target, int32_t rank,
         const std::vector<PlacedPiece>& held)
      : geometry_(geometry), target_(target), rank_(rank), held_(held) {
    if (rank < 0) return;
    for (const PlacedPiece& piece : PiecesOf(target, geometry, static_cast<uint32_t>(rank))) {
      covers_.push_back({piece, {}, false, false, std::nullopt});
    }
    std::ranges::stable_sort(covers_, {}, &Cover::expert);
    for (uint32_t i = 0; i < held.size(); ++i) {
      held_of_.emplace_back(ExpertOf(held[i].layer, held[i].expert), i);
    }
    std::ranges::sort(held_of_);
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
    for (size_t i = 0; i < held_.size(); ++i) {
      const PlacedPiece& piece = held_[i];
      Cover* cover = CoverOf(piece.layer, piece.expert, piece.run);
      if (cover == nullptr || cover->piece != piece) continue;
      cover->in_place = proof_.stays[i] = true;
    }
    for (Cover& cover : covers_) {
      if (!cover.in_place) cover.here.assign(cover.piece.run.count, false);
    }
  }

  std::span<Cover> CoversOf(Expert expert) {
    const auto [first, last] = std::equal_range(covers_.begin(), covers_.end(), expert, ByExpert{});
    return {first, last};
  }

  // Indices of `held_`, each with the expert.
  std::span<const std::pair<Expert, uint32_t>> HeldOf(Expert expert) const {
    const auto [first, last] =
        std::equal_range(held_of_.begin(), held_of_.end(), expert, ByExpert{});
    return {first, last};
  }

  // The piece of the target that the run lies in; a rank at several positions has several of
  // one expert.
  Cover* CoverOf(uint32_t layer, uint32_t expert, Run run) {
    for (Cover& cover : CoversOf(ExpertOf(layer, expert))) {
      const Run whole = cover.piece.run;
      if (run.start >= whole.start &&
          uint64_t{run.start} + run.count <= uint64_t{whole.start} + whole.count) {
        return &cover;
      }
    }
    return nullptr;
  }

  // Marks the run as brought once; `what` names the column in the message.
  Result<Cover*> Bring(const char* what, uint32_t layer, uint32_t expert, Run run) {
    const auto where = [&] {
      return fmt::format("{} of layer {}, expert {}, granules {}..{}", what, layer, expert,
                         run.start, static_cast<uint64_t>(run.start) + run.count);
    };
    const std::span<Cover> covers = CoversOf(ExpertOf(layer, expert));
    if (covers.empty()) return Bad(where() + ": the target does not give this expert to the rank");
    Cover* found = run.count == 0 ? nullptr : CoverOf(layer, expert, run);
    if (found == nullptr) {
      const Run whole = covers.front().piece.run;
      return Bad(fmt::format("{}: the rank's shard is {}..{}", where(), whole.start,
                             whole.start + whole.count));
    }
    Cover& cover = *found;
    const Run whole = cover.piece.run;
    for (uint32_t g = run.start - whole.start; g < run.start - whole.start + run.count; ++g) {
      if (cover.in_place || cover.here[g])
        return Bad(fmt::format("{}: granule {} comes twice", where(), whole.start + g));
      cover.here[g] = true;
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
      const auto held = HeldOf(ExpertOf(copies.layer(i), copies.expert(i)));
      const auto source = std::ranges::find_if(held, [&](const auto& entry) {
        const Run have = held_[entry.second].run;
        return have.start <= run.start && run.start + run.count <= have.start + have.count;
      });
      if (source == held.end()) {
        return Bad(
            fmt::format("copy of layer {}, expert {}, granules {}..{}: the rank does not hold them",
                        copies.layer(i), copies.expert(i), run.start, run.start + run.count));
      }
      const bool tail = geometry_.tail_bytes() > 0 && !std::exchange((*cover)->tail, true);
      proof_.copies.push_back({(*cover)->piece, run, 0, source->second, tail});
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
      proof_.fetches.push_back({(*cover)->piece, run, source, 0});
    }
    return OkStatus();
  }

  // As the planner counts them: what is held of an expert is enough to have its tail.
  void GiveTails() {
    for (const Cover& cover : covers_) {
      if (cover.in_place || cover.tail) continue;
      const auto held = HeldOf(cover.expert());
      if (held.empty()) {
        proof_.fetches[*cover.brings_it].tail = true;
      } else {
        proof_.copies.push_back(
            {cover.piece, {cover.piece.run.start, 0}, 0, held.front().second, true});
      }
    }
  }

  Status CheckComplete() const {
    for (const Cover& cover : covers_) {
      const auto gap = std::find(cover.here.begin(), cover.here.end(), false);
      if (gap == cover.here.end()) continue;
      return Bad(fmt::format("granule {} of layer {}, expert {} has no source",
                             cover.piece.run.start + (gap - cover.here.begin()), cover.piece.layer,
                             cover.piece.expert));
    }
    return OkStatus();
  }

  // Nothing that comes may lie over anything that is held: sorted sweep over both.
  Status CheckHazards() const {
    struct Range {
      uint64_t start, end;
      const PlacedPiece* piece;
    };
    std::map<uint32_t, std::vector<Range>> banks;
    for (const PlacedPiece& piece : held_) {
      banks[piece.bank].push_back({piece.offset, piece.offset + piece.bytes, &piece});
    }
    for (const Cover& cover : covers_) {
      if (cover.in_place) continue;
      const PlacedPiece& piece = cover.piece;
      banks[piece.bank].push_back({piece.offset, piece.offset + piece.bytes, &piece});
    }
    for (auto& [bank, ranges] : banks) {
      std::ranges::sort(ranges, {}, &Range::start);
      for (size_t i = 1; i < ranges.size(); ++i) {
        if (ranges[i].start < ranges[i - 1].end) {
          return Bad(fmt::format(
              "bank {}: layer {} expert {} and layer {} expert {} lie over each other at byte {}",
              bank, ranges[i - 1].piece->layer, ranges[i - 1].piece->expert, ranges[i].piece->layer,
              ranges[i].piece->expert, ranges[i].start));
        }
      }
    }
    return OkStatus();
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
    std::vector<PlacedPiece> after;
    for (const Cover& cover : covers_) {
      after.push_back(cover.piece);
      if (!cover.in_place) proof_.incoming.push_back(cover.piece);
    }
    std::sort(proof_.incoming.begin(), proof_.incoming.end(), InOrder);
    std::vector<PlacedPiece> all(held_);
    all.insert(all.end(), proof_.incoming.begin(), proof_.incoming.end());
    const uint64_t page = geometry_.page_bytes();
    const uint64_t dense = RoundUp(geometry_.proto().dense_bytes(), page) / page;
    const bool dense_after = rank_ >= 0 && HoldsDense(target_, static_cast<uint32_t>(rank_));
    proof_.peak_pages = PagesTouched(all, geometry_) + (holds_dense || dense_after ? dense : 0);
    proof_.steady_pages = PagesTouched(after, geometry_) + (dense_after ? dense : 0);
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
  std::vector<Cover> covers_;                         // by expert, then as PiecesOf has them
  std::vector<std::pair<Expert, uint32_t>> held_of_;  // and the index in `held_`; sorted
  PartProof proof_;
};

}  // namespace

Result<PartProof> ProvePart(const GeometryView& geometry, const v1::Layout& target, int32_t rank,
                            const std::vector<PlacedPiece>& held, bool holds_dense,
                            const v1::RankPart& part) {
  return Prover(geometry, target, rank, held).Prove(holds_dense, part);
}

}  // namespace tangram::layout
