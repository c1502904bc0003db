// Compares Banks with a model that is too simple to be wrong: the set of pages that the resident
// pieces touch.
#include "agent/memory/banks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "agent/device/platform.h"
#include "agent/layout/testing.h"

namespace tangram::memory {
namespace {

using layout::PlacedPiece;

constexpr uint64_t kPage = 4096;

struct World {
  World(const v1::Geometry& geometry, uint64_t pages, uint32_t count)
      : view(layout::GeometryView::Make(geometry).value()),
        platform(device::MakePlatform({}).value()),
        device(std::move(platform->Make("test", {pages * kPage, kPage, kPage}).value().weights)),
        banks(Banks::Make(device.get(), view, count).value()) {}
  static uint64_t BytesOf(const std::vector<BackedRange>& ranges) {
    uint64_t bytes = 0;
    for (const BackedRange& range : ranges) {
      for (const device::Extent& extent : range.behind.extents) bytes += extent.length;
    }
    return bytes;
  }
  void Fill(const PlacedPiece& piece, int value) {
    std::ranges::fill(device::View(banks->At(piece.bank, piece.offset, piece.bytes)),
                      std::byte(value));
  }
  bool IsFilled(const PlacedPiece& piece, int value) {
    return std::ranges::all_of(device::View(banks->At(piece.bank, piece.offset, piece.bytes)),
                               [&](std::byte b) { return b == std::byte(value); });
  }

  layout::GeometryView view;
  std::unique_ptr<device::Platform> platform;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<Banks> banks;
};

// One bank of whole experts (several to a page). Bank 3 has runs of any length, from page edge to
// page edge, as TensorParallel pieces have.
PlacedPiece RandomPiece(const layout::GeometryView& view, std::mt19937_64& random) {
  PlacedPiece piece;
  piece.bank = static_cast<uint32_t>(random() % 4);
  if (piece.bank < 3) {
    piece.slot = static_cast<uint32_t>(random() % 30);
    piece.offset = piece.slot * view.expert_pitch();
    piece.bytes = view.expert_bytes();
  } else {
    piece.offset = random() % 100 * layout::kPieceAlignment;
    piece.bytes = (random() % 50 + 1) * layout::kPieceAlignment - random() % 2 * 17;
  }
  return piece;
}

bool Overlap(const PlacedPiece& a, const PlacedPiece& b) {
  return a.bank == b.bank && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST(Banks, KeepsPieceBytesWhenOtherPiecesChange) {
  constexpr uint64_t kPages = 24;
  World world(layout::testing::SmallGeometry(3, 8, 3), kPages, 4);
  std::mt19937_64 random(3);
  std::vector<std::pair<PlacedPiece, int>> held;
  int full = 0;
  const auto places = [&] {
    std::vector<PlacedPiece> out;
    for (const auto& [piece, value] : held) out.push_back(piece);
    return out;
  };
  for (int step = 0; step < 3000; ++step) {
    const uint64_t before = world.device->free_bytes();
    if (random() % 5 < 3) {
      std::vector<PlacedPiece> fresh;
      for (uint64_t n = random() % 3 + 1; n > 0; --n) {
        const PlacedPiece piece = RandomPiece(world.view, random);
        const auto clashes = [&](const PlacedPiece& other) { return Overlap(piece, other); };
        const auto now = places();
        if (std::none_of(now.begin(), now.end(), clashes) &&
            std::none_of(fresh.begin(), fresh.end(), clashes)) {
          fresh.push_back(piece);
        }
      }
      std::vector<PlacedPiece> with = places();
      with.insert(with.end(), fresh.begin(), fresh.end());
      const bool fits = layout::testing::PagesOf(with, world.view).size() <= kPages;
      const Status backed = world.banks->Back(fresh);
      ASSERT_EQ(backed.ok(), fits) << backed.message();
      if (!fits) {
        ++full;
        ASSERT_EQ(backed.code(), Code::kNoMemory);
        ASSERT_EQ(world.device->free_bytes(), before) << "a refusal left something behind";
        continue;
      }
      ASSERT_EQ(World::BytesOf(world.banks->RangesOnlyOf(fresh, false).value()),
                before - world.device->free_bytes());
      for (const PlacedPiece& piece : fresh) {
        held.emplace_back(piece, static_cast<int>(random() % 255) + 1);
        world.Fill(piece, held.back().second);
      }
    } else if (!held.empty()) {
      const size_t i = random() % held.size();
      const std::vector<PlacedPiece> gone = {held[i].first};
      uint64_t announced = 0;
      for (const BankRange& place : world.banks->PlacesOnlyOf(gone, false))
        announced += place.bytes;
      world.banks->Release(gone);
      held.erase(held.begin() + static_cast<int64_t>(i));
      ASSERT_EQ(announced, world.device->free_bytes() - before);
    }
    ASSERT_EQ(world.banks->mapped_bytes(),
              layout::testing::PagesOf(places(), world.view).size() * kPage);
    const Status audit = world.banks->Audit(places(), false);
    ASSERT_TRUE(audit.ok()) << audit.message();
    for (const auto& [piece, value] : held) ASSERT_TRUE(world.IsFilled(piece, value));
  }
  EXPECT_GT(full, 10) << "the pool hardly ever ran out: the test is too weak";
}

// Does as an engine: maps the extents of Ranges() at their offsets and reads the pieces.
TEST(Banks, ImporterReadsPiecesThroughRanges) {
  World world(layout::testing::SmallGeometry(2, 8, 3), 64, 3);
  std::mt19937_64 random(11);
  std::vector<PlacedPiece> held;
  while (held.size() < 12) {
    const PlacedPiece piece = RandomPiece(world.view, random);
    if (piece.bank > 2 ||
        std::any_of(held.begin(), held.end(), [&](const auto& o) { return Overlap(piece, o); })) {
      continue;
    }
    ASSERT_TRUE(world.banks->Back({piece}).ok());
    held.push_back(piece);
    world.Fill(piece, static_cast<int>(held.size()));
  }
  const auto importer = std::move(world.platform->Importers().weights);
  auto space = importer->Reserve(3 * world.view.bank_pitch());
  ASSERT_TRUE(space.ok());
  std::vector<device::Mapping> kept;
  const auto ranges = world.banks->Ranges(held, false);
  ASSERT_TRUE(ranges.ok());
  for (const BackedRange& backed : *ranges) {
    ASSERT_EQ(backed.behind.descriptors.size(), 1U);
    auto block = importer->Import(backed.behind.descriptors[0]->get(), backed.behind.extents);
    ASSERT_TRUE(block.ok());
    const uint64_t at = backed.bank * world.view.bank_pitch() + backed.offset;
    const device::Placement placement{at, *block, {0, (*block)->bytes()}};
    auto mapped = importer->Map(*space, {&placement, 1}, device::Access::kRead);
    ASSERT_TRUE(mapped.ok()) << mapped.status().message();
    kept.push_back(std::move(mapped->front()));
  }
  for (size_t i = 0; i < held.size(); ++i) {
    const uint64_t at = held[i].bank * world.view.bank_pitch() + held[i].offset;
    const auto data = device::View({importer.get(), (*space)->address() + at, held[i].bytes});
    for (uint64_t b = 0; b < held[i].bytes; ++b) {
      ASSERT_EQ(data[b], std::byte(i + 1)) << "piece " << i << ", byte " << b;
    }
  }
}

TEST(Banks, PutsDenseTensorsInSeparateRange) {
  World world(layout::testing::SmallGeometry(2, 4, 2), 8, 2);  // 10000 bytes: 3 pages
  ASSERT_TRUE(world.banks->BackDense().ok());
  EXPECT_EQ(world.device->free_bytes(), 5 * kPage);
  std::ranges::fill(device::View(world.banks->Dense(0, 10000)), std::byte{1});
  EXPECT_TRUE(world.banks->Audit({}, true).ok());
  EXPECT_EQ(world.banks->Audit({}, false).code(), Code::kInternal) << "a leak of three pages";
  const auto ranges = world.banks->Ranges({}, true).value();
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_TRUE(ranges[0].dense);
  EXPECT_EQ(World::BytesOf(ranges), 3 * kPage);
  world.banks->ReleaseDense();
  EXPECT_EQ(world.device->free_bytes(), 8 * kPage);
}

TEST(Banks, AuditDetectsLeakAndLoss) {
  World world(layout::testing::SmallGeometry(2, 4, 2), 8, 2);
  PlacedPiece piece;
  piece.bytes = world.view.expert_bytes();
  PlacedPiece other = piece;
  other.slot = 1;
  other.offset = world.view.expert_pitch();
  ASSERT_TRUE(world.banks->Back({piece}).ok());
  EXPECT_TRUE(world.banks->Audit({piece}, false).ok());
  EXPECT_EQ(world.banks->Audit({}, false).code(), Code::kInternal);
  EXPECT_EQ(world.banks->Audit({piece, other}, false).code(), Code::kInternal);
  other.bank = 1;
  EXPECT_EQ(world.banks->Audit({piece, other}, false).code(), Code::kInternal);
}

}  // namespace
}  // namespace tangram::memory
