#include "agent/server/descriptor_book.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace tangram {
namespace {

SharedFd File() { return std::make_shared<const UniqueFd>(memfd_create("t", MFD_CLOEXEC)); }

TEST(DescriptorBook, PassesEachDescriptorOnceUntilClosed) {
  DescriptorBook book;
  const std::vector<SharedFd> files{File(), File(), File()};
  std::vector<PassedFd> fresh;
  EXPECT_EQ(book.NumbersOf(std::vector{files[1], files[0]}, &fresh), (std::vector<uint32_t>{0, 1}));
  ASSERT_EQ(fresh.size(), 2U);
  EXPECT_EQ(fresh[0].fd, files[1]->get());
  fresh.clear();
  EXPECT_EQ(book.NumbersOf(files, &fresh), (std::vector<uint32_t>{1, 0, 2}));
  ASSERT_EQ(fresh.size(), 1U);
  EXPECT_EQ(fresh[0].number, 2U);
  EXPECT_EQ(fresh[0].fd, files[2]->get());

  fresh.clear();
  book.Closed(0);
  book.Closed(17);  // unknown
  EXPECT_EQ(book.NumbersOf(files, &fresh), (std::vector<uint32_t>{1, 3, 2}))
      << "no number is given twice";
  ASSERT_EQ(fresh.size(), 1U);
  EXPECT_EQ(fresh[0].number, 3U);
}

// The kernel reuses the number of a closed descriptor for the next one.
TEST(DescriptorBook, DistinguishesDescriptorsWithReusedNumber) {
  DescriptorBook book;
  std::vector<PassedFd> fresh;
  SharedFd file = File();
  const int number = file->get();
  book.NumbersOf({&file, 1}, &fresh);
  file.reset();
  file = File();
  ASSERT_EQ(file->get(), number);
  fresh.clear();
  EXPECT_EQ(book.NumbersOf({&file, 1}, &fresh), (std::vector<uint32_t>{1}));
  EXPECT_EQ(fresh.size(), 1U) << "it is another file";
}

TEST(DescriptorBook, ContinuesFromRetainedDescriptors) {
  DescriptorBook book;
  const std::vector<SharedFd> kept{File(), File()};
  book.Has(9, kept[0]);
  std::vector<PassedFd> fresh;
  EXPECT_EQ(book.NumbersOf(kept, &fresh), (std::vector<uint32_t>{9, 10}));
  EXPECT_EQ(fresh.size(), 1U);
}

}  // namespace
}  // namespace tangram
