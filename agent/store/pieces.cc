#include "agent/store/pieces.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tangram::store {
namespace {

// A key after all pieces of an expert.
constexpr layout::Run kBehindAll{UINT32_MAX, 0};

bool Before(const Piece& a, const Piece& b) { return layout::InOrder(a.place, b.place); }

bool BeforeKey(const Piece& piece, const layout::PieceKey& key) {
  return layout::KeyOf(piece.place) < key;
}

}  // namespace

bool Piece::Names(layout::Run run) const {
  const layout::Run have = place.run;
  return run.start >= have.start &&
         uint64_t{run.start} + run.count <= uint64_t{have.start} + have.count;
}

bool Piece::Has(layout::Run run) const {
  if (!Names(run)) return false;
  const auto first = hashes.begin() + (run.start - place.run.start);
  return std::find(first, first + run.count, 0) == first + run.count;
}

int64_t Piece::Missing() const {
  const auto gap = std::find(hashes.begin(), hashes.end(), 0);
  return gap == hashes.end() ? -1 : place.run.start + (gap - hashes.begin());
}

Pieces::Pieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  std::sort(pieces_.begin(), pieces_.end(), Before);
}

std::vector<layout::PlacedPiece> Pieces::Places() const {
  std::vector<layout::PlacedPiece> out;
  out.reserve(pieces_.size());
  for (const Piece& piece : pieces_) out.push_back(piece.place);
  return out;
}

template <typename Is>
const Piece* Pieces::FindIf(uint32_t layer, uint32_t expert, layout::Run run, Is&& is) const {
  const layout::PieceKey first(layer, expert, 0);
  for (auto it = std::lower_bound(pieces_.begin(), pieces_.end(), first, BeforeKey);
       it != pieces_.end() && it->place.layer == layer && it->place.expert == expert &&
       it->place.run.start <= run.start;
       ++it) {
    if (is(*it)) return &*it;
  }
  return nullptr;
}

const Piece* Pieces::Find(uint32_t layer, uint32_t expert, layout::Run run) const {
  return FindIf(layer, expert, run, [&](const Piece& piece) { return piece.Has(run); });
}

bool Pieces::Names(uint32_t layer, uint32_t expert, layout::Run run) const {
  return FindIf(layer, expert, run, [&](const Piece& piece) { return piece.Names(run); }) !=
         nullptr;
}

const Piece* Pieces::FindTail(uint32_t layer, uint32_t expert) const {
  return FindIf(layer, expert, kBehindAll, [](const Piece& piece) { return piece.tail() != 0; });
}

bool Pieces::NamesTail(uint32_t layer, uint32_t expert) const {
  return FindIf(layer, expert, kBehindAll, [](const Piece&) { return true; }) != nullptr;
}

Piece* Pieces::At(const layout::PieceKey& key) {
  const auto it = std::lower_bound(pieces_.begin(), pieces_.end(), key, BeforeKey);
  return it != pieces_.end() && layout::KeyOf(it->place) == key ? &*it : nullptr;
}

void Pieces::Add(Pieces more) {
  std::vector<Piece> both;
  both.reserve(pieces_.size() + more.pieces_.size());
  std::merge(std::move_iterator(pieces_.begin()), std::move_iterator(pieces_.end()),
             std::move_iterator(more.pieces_.begin()), std::move_iterator(more.pieces_.end()),
             std::back_inserter(both), Before);
  pieces_ = std::move(both);
}

Pieces Pieces::Split(const std::vector<bool>& stays) {
  std::vector<Piece> kept;
  Pieces gone;
  kept.reserve(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    (stays[i] ? kept : gone.pieces_).push_back(std::move(pieces_[i]));
  }
  pieces_ = std::move(kept);
  return gone;
}

}  // namespace tangram::store
