// The two copies at the library's boundary: no byte beyond the part that both sides know.
#include "agent/client/versioned.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tangram {
namespace {

// A struct as it was, as the library has it, and as it will be.
struct Old {
  size_t struct_size;
  uint64_t a;
};
struct Now {
  size_t struct_size;
  uint64_t a, b;
};
struct Later {
  size_t struct_size;
  uint64_t a, b, c;
};

constexpr size_t kNeeded = TANGRAM_UP_TO(Now, a);

TEST(Versioned, ReadsOlderCallersMembersAndZeroesRest) {
  struct {
    Old old{sizeof(Old), 7};
    uint64_t others = 99;
  } memory;
  const auto read = ReadKnown(reinterpret_cast<const Now*>(&memory.old), kNeeded, "Now");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->a, 7u);
  EXPECT_EQ(read->b, 0u);
  EXPECT_EQ(read->struct_size, sizeof(Now));
}

TEST(Versioned, ReadsKnownMembersOfNewerCaller) {
  const Later later{sizeof later, 1, 2, 3};
  const auto read = ReadKnown(reinterpret_cast<const Now*>(&later), kNeeded, "Now");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->a, 1u);
  EXPECT_EQ(read->b, 2u);
}

TEST(Versioned, RejectsTooShortStructWithBothSizes) {
  Now now{8, 1, 2};
  const auto read = ReadKnown(&now, kNeeded, "Now");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), Code::kInvalid);
  EXPECT_EQ(read.status().message(),
            "Now.struct_size is 8, this library needs 16 at least: set it to sizeof(Now)");
  EXPECT_EQ(CheckKnown<Now>(nullptr, kNeeded, "Now").message(), "Now is null");
}

TEST(Versioned, WritesOnlyMembersKnownToCaller) {
  struct {
    Old old{sizeof(Old), 0};
    uint64_t others = 99;
  } memory;
  WriteKnown(reinterpret_cast<Now*>(&memory.old), Now{sizeof(Now), 5, 6});
  EXPECT_EQ(memory.old.struct_size, sizeof(Old));
  EXPECT_EQ(memory.old.a, 5u);
  EXPECT_EQ(memory.others, 99u);

  Later later{sizeof later, 0, 0, 42};
  WriteKnown(reinterpret_cast<Now*>(&later), Now{sizeof(Now), 5, 6});
  EXPECT_EQ(later.b, 6u);
  EXPECT_EQ(later.c, 42u);
  EXPECT_EQ(later.struct_size, sizeof(Later));

  Now none{0, 1, 2};
  WriteKnown(&none, Now{sizeof(Now), 5, 6});
  EXPECT_EQ(none.a, 1u);
}

}  // namespace
}  // namespace tangram
