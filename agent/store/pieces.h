// The pieces of one rank and what is verified of them, found by (layer, expert, first granule).
#pragma once

#include <cstdint>
#include <vector>

#include "agent/layout/layout.h"

namespace tangram::store {

// A piece in its place.
struct Piece {
  explicit Piece(const layout::PlacedPiece& at) : place(at), hashes(at.run.count, 0) {}

  bool Names(layout::Run run) const;  // all of it is the piece's
  bool Has(layout::Run run) const;    // and verified
  // Of the first granule that is not verified; -1: all are.
  int64_t Missing() const;

  layout::PlacedPiece place;
  std::vector<uint64_t> hashes;  // by granule of the run; 0: not verified here (device::HashOf)
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
