#include "agent/store/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tangram::store {
namespace {

using layout::PlacedPiece;
using layout::Run;

// Small numbers, so that runs of one expert touch, nest and repeat.
Piece RandomPiece(std::mt19937_64& random) {
  PlacedPiece place;
  place.layer = static_cast<uint32_t>(random() % 3);
  place.expert = static_cast<uint32_t>(random() % 4);
  place.run = {static_cast<uint32_t>(random() % 5), static_cast<uint32_t>(1 + random() % 4)};
  place.bank = static_cast<uint32_t>(random());
  Piece piece(place, random() % 4 > 0);
  for (uint64_t& hash : piece.hashes) hash = random() % 4;
  return piece;
}

std::vector<Piece> RandomPieces(std::mt19937_64& random) {
  std::vector<Piece> out;
  for (uint64_t n = random() % 30; n > 0; --n) out.push_back(RandomPiece(random));
  return out;
}

// Searched piece by piece.
bool SomeoneHas(const std::vector<Piece>& pieces, uint32_t layer, uint32_t expert, Run run) {
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    if (piece.place.layer != layer || piece.place.expert != expert) return false;
    for (uint32_t g = run.start; g < run.start + run.count; ++g) {
      const Run have = piece.place.run;
      if (g < have.start || g >= have.start + have.count || piece.hashes[g - have.start] == 0)
        return false;
    }
    return true;
  });
}

TEST(Pieces, FindsOnlyResidentPieces) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const std::vector<Piece> plain = RandomPieces(random);
    Pieces pieces(plain);
    for (int ask = 0; ask < 50; ++ask) {
      const PlacedPiece wanted = RandomPiece(random).place;
      const Piece* found = pieces.Find(wanted.layer, wanted.expert, wanted.run);
      ASSERT_EQ(found != nullptr, SomeoneHas(plain, wanted.layer, wanted.expert, wanted.run));
      if (found != nullptr) {
        EXPECT_TRUE(SomeoneHas({*found}, wanted.layer, wanted.expert, wanted.run));
      }
      const auto of_expert = [&](const Piece& piece) {
        return piece.place.layer == wanted.layer && piece.place.expert == wanted.expert;
      };
      const Piece* tail = pieces.FindTail(wanted.layer, wanted.expert);
      ASSERT_EQ(tail != nullptr, std::any_of(plain.begin(), plain.end(), [&](const Piece& piece) {
                  return of_expert(piece) && piece.hashes.size() > piece.place.run.count &&
                         piece.hashes.back() != 0;
                }));
      if (tail != nullptr) {
        EXPECT_NE(tail->tail(), 0U);
      }
      ASSERT_EQ(pieces.NamesTail(wanted.layer, wanted.expert),
                std::any_of(plain.begin(), plain.end(), of_expert));
      const Piece* at = pieces.At(layout::KeyOf(wanted));
      ASSERT_EQ(at != nullptr, std::any_of(plain.begin(), plain.end(), [&](const Piece& piece) {
                  return layout::KeyOf(piece.place) == layout::KeyOf(wanted);
                }));
    }
  }
}

TEST(Pieces, SplitAndAddKeepAllPiecesInOrder) {
  std::mt19937_64 random(6);
  const auto sorted = [](std::vector<PlacedPiece> places) {
    std::sort(places.begin(), places.end(), [](const PlacedPiece& a, const PlacedPiece& b) {
      return std::pair(layout::KeyOf(a), a.bank) < std::pair(layout::KeyOf(b), b.bank);
    });
    return places;
  };
  for (int round = 0; round < 300; ++round) {
    Pieces pieces(RandomPieces(random));
    const std::vector<PlacedPiece> before = pieces.Places();
    std::vector<bool> stays;
    for (size_t i = 0; i < pieces.size(); ++i) stays.push_back(random() % 2 == 0);
    Pieces gone = pieces.Split(stays);
    ASSERT_EQ(pieces.size(), static_cast<size_t>(std::count(stays.begin(), stays.end(), true)));
    for (size_t i = 0, kept = 0; i < stays.size(); ++i) {
      if (!stays[i]) continue;
      EXPECT_EQ(pieces[kept++].place, before[i]);
    }
    pieces.Add(std::move(gone));
    const std::vector<PlacedPiece> after = pieces.Places();
    EXPECT_TRUE(std::is_sorted(after.begin(), after.end(), layout::InOrder));
    EXPECT_EQ(sorted(after), sorted(before));
  }
}

TEST(Pieces, MissingReturnsFirstUnverifiedGranule) {
  PlacedPiece place;
  place.run = {4, 3};
  Piece piece(place, false);
  EXPECT_EQ(piece.Missing(), 4);
  piece.hashes = {1, 1, 0};
  EXPECT_EQ(piece.Missing(), 6);
  EXPECT_TRUE(piece.Has({4, 2}));
  EXPECT_FALSE(piece.Has({5, 2}));
  piece.hashes[2] = 1;
  EXPECT_EQ(piece.Missing(), -1);
  EXPECT_TRUE(piece.Has({4, 3}));
  EXPECT_FALSE(piece.Has({4, 4}));
  EXPECT_FALSE(piece.Has({3, 2}));
}

TEST(Pieces, TreatsPieceWithoutTailAsIncomplete) {
  PlacedPiece place;
  place.run = {4, 2};
  Piece piece(place, true);
  piece.hashes = {1, 1, 0};
  EXPECT_EQ(piece.Missing(), 6);
  EXPECT_EQ(piece.tail(), 0U);
  EXPECT_TRUE(piece.Has({4, 2})) << "its granules others may have already";
  piece.hashes[2] = 9;
  EXPECT_EQ(piece.Missing(), -1);
  EXPECT_EQ(piece.tail(), 9U);
  Piece none(place, false);
  none.hashes = {1, 1};
  EXPECT_EQ(none.tail(), 0U) << "the last granule is no tail";
}

}  // namespace
}  // namespace tangram::store
