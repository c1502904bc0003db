// The pieces of one rank and what is verified of them, found by (layer, expert, first granule).
#pragma once

#include <cstdint>
#include <vector>

#include "agent/layout/layout.h"

namespace tangram::store {

// A piece in its place.
struct Piece {
  // `tail`: the geometry's experts have one.
  Piece(const layout::PlacedPiece& at, bool tail)
      : place(at), hashes(at.run.count + (tail ? 1 : 0), 0) {}

  bool Names(layout::Run run) const;  // all of it is the piece's
  bool Has(layout::Run run) const;    // and verified
  // The expert's tail in it; 0: not verified, or it has none.
  uint64_t tail() const { return hashes.size() > place.run.count ? hashes.back() : 0; }
  // Of the first granule that is not verified, or behind the last one, if the tail is not; -1: all
  // are.
  int64_t Missing() const;

  layout::PlacedPiece place;
  // By granule of the run, then of the tail if there is one; 0: not verified here (device::HashOf).
  std::vector<uint64_t> hashes;
};

// In order of their key, as one flat array: 14,848 pieces (a rank of DeepSeek-V3 in Tensor mode)
// are found, merged and walked without a node each. Two of one key may be there, while a repair
// keeps what a flip would have given back.
class Pieces {
 public:
  Pieces() = default;
  explicit Pieces(std::vector<Piece> pieces);  // in any order

  bool empty() const { return pieces_.empty(); }
  size_t size() const { return pieces_.size(); }
  auto begin() const { return pieces_.begin(); }
  auto end() const { return pieces_.end(); }
  const Piece& operator[](size_t i) const { return pieces_[i]; }
  std::vector<layout::PlacedPiece> Places() const;

  // One that has all of the run, verified; null: none. log n, and what there is of the expert.
  const Piece* Find(uint32_t layer, uint32_t expert, layout::Run run) const;
  // Whether one is to have all of the run, verified or not yet.
  bool Names(uint32_t layer, uint32_t expert, layout::Run run) const;
  // The same for the expert's tail, which every piece of it has.
  const Piece* FindTail(uint32_t layer, uint32_t expert) const;
  bool NamesTail(uint32_t layer, uint32_t expert) const;
  // The one that begins there; null: none.
  Piece* At(const layout::PieceKey& key);

  // Takes these in. Linear in both.
  void Add(Pieces more);
  // Keeps those of which `stays` (by index) is true, gives the others. Linear.
  Pieces Split(const std::vector<bool>& stays);

 private:
  template <typename Is>
  const Piece* FindIf(uint32_t layer, uint32_t expert, layout::Run run, Is&& is) const;

  std::vector<Piece> pieces_;
};

}  // namespace tangram::store
