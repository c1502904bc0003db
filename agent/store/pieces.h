// The pieces of one rank and their verified hashes, found by (layer, expert, first granule).
#pragma once

#include <cstdint>
#include <vector>

#include "agent/layout/layout.h"

namespace tangram::store {

// A piece at its place.
struct Piece {
  // `tail`: the geometry's experts have one.
  Piece(const layout::PlacedPiece& at, bool tail)
      : place(at), hashes(at.run.count + (tail ? 1 : 0), 0) {}

  bool Names(layout::Run run) const;  // all of it belongs to the piece
  bool Has(layout::Run run) const;    // and is verified
  // Hash of the expert's tail; 0: not verified, or no tail.
  uint64_t tail() const { return hashes.size() > place.run.count ? hashes.back() : 0; }
  // The first unverified granule, or the index after the last one if only the tail is unverified;
  // -1: none.
  int64_t Missing() const;

  layout::PlacedPiece place;
  // By granule of the run, then the tail if there is one; 0: not verified here (device::HashOf).
  std::vector<uint64_t> hashes;
};

// A flat array in key order: 14,848 pieces (a rank of DeepSeek-V3 in Tensor mode) are found, merged
// and walked without one node each. Two pieces may have the same key while a repair retains pieces
// that a flip would have freed.
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

  // A piece with all of the run verified; null: none. log n, plus the pieces of the expert.
  const Piece* Find(uint32_t layer, uint32_t expert, layout::Run run) const;
  // Whether a piece contains all of the run, verified or not.
  bool Names(uint32_t layer, uint32_t expert, layout::Run run) const;
  // The same for the expert's tail, which is in each of its pieces.
  const Piece* FindTail(uint32_t layer, uint32_t expert) const;
  bool NamesTail(uint32_t layer, uint32_t expert) const;
  // The piece that begins there; null: none.
  Piece* At(const layout::PieceKey& key);

  // Merges these pieces. Linear in both.
  void Add(Pieces more);
  // Keeps the pieces for which `stays` (by index) is true, returns the others. Linear.
  Pieces Split(const std::vector<bool>& stays);

 private:
  template <typename Is>
  const Piece* FindIf(uint32_t layer, uint32_t expert, layout::Run run, Is&& is) const;

  std::vector<Piece> pieces_;
};

}  // namespace tangram::store
