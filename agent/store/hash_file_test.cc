#include "agent/store/hash_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "agent/layout/testing.h"
#include "agent/loader/testing/writer.h"

namespace tangram::store {
namespace {

class HashFileTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<HashFile>> Open(const std::string& revision, size_t tensors = 2) {
    return HashFile::Open(path_, revision, geometry_, tensors);
  }

  loader::testing::TempDir dir_;
  const std::string path_ = dir_.path() + "/hashes";
  const layout::GeometryView geometry_ =
      layout::GeometryView::Make(layout::testing::SmallGeometry(2, 4, 6)).value();
};

TEST_F(HashFileTest, PersistsRecordedHashes) {
  {
    auto file = Open("r1");
    ASSERT_TRUE(file.ok()) << file.status().message();
    const std::vector<uint64_t> hashes{7, 8, 9};
    ASSERT_TRUE((*file)->Note(1, 3, 3, hashes).ok());  // the very last granules
    ASSERT_TRUE((*file)->NoteDense(1, 11).ok());
  }
  const auto next = Open("r1");
  const auto noted = (*next)->Read();
  ASSERT_TRUE(noted.ok()) << noted.status().message();
  EXPECT_EQ(noted->Granule(1, 3, 2), 0u) << "never noted";
  EXPECT_EQ(noted->Granule(1, 3, 3), 7u);
  EXPECT_EQ(noted->Granule(1, 3, 5), 9u);
  EXPECT_EQ(noted->dense, (std::vector<uint64_t>{0, 11}));
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(HashFileTest, StoresTailsSeparately) {
  v1::Geometry tailed = layout::testing::SmallGeometry(2, 4, 6);
  tailed.set_expert_tail_bytes(32);
  const auto geometry = layout::GeometryView::Make(tailed).value();
  const auto open = [&] { return HashFile::Open(path_, "r1", geometry, 2); };
  {
    auto file = open();
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->Note(1, 3, 5, std::vector<uint64_t>{7}).ok());  // the last granule
    ASSERT_TRUE((*file)->NoteTail(0, 0, 8).ok());
    ASSERT_TRUE((*file)->NoteTail(1, 3, 9).ok());
    ASSERT_TRUE((*file)->NoteDense(0, 10).ok());
  }
  const auto next = open();
  const auto noted = (*next)->Read();
  ASSERT_TRUE(noted.ok()) << noted.status().message();
  EXPECT_EQ(noted->Granule(1, 3, 5), 7u);
  EXPECT_EQ(noted->Tail(0, 0), 8u);
  EXPECT_EQ(noted->Tail(0, 1), 0u) << "never noted";
  EXPECT_EQ(noted->Tail(1, 3), 9u);
  EXPECT_EQ(noted->dense, (std::vector<uint64_t>{10, 0}));
}

TEST_F(HashFileTest, StartsFreshForOtherRevisionOrModel) {
  for (const auto& [revision, tensors] : {std::pair("r2", 2), std::pair("r1", 3)}) {
    ASSERT_TRUE((*Open("r1"))->NoteDense(0, 5).ok());
    auto noted = (*Open(revision, static_cast<size_t>(tensors)))->Read();
    ASSERT_TRUE(noted.ok());
    EXPECT_EQ(noted->dense[0], 0u);
  }
}

TEST_F(HashFileTest, ReportsTruncatedFileOrStartsFresh) {
  auto file = Open("r1");
  ASSERT_TRUE((*file)->NoteDense(0, 5).ok());
  std::filesystem::resize_file(path_, 40);
  EXPECT_EQ((*file)->Read().status().code(), Code::kInternal);
  EXPECT_EQ((*Open("r1"))->Read()->dense[0], 0u);
}

TEST_F(HashFileTest, ReportsPathWhenFileCannotBeCreated) {
  ASSERT_TRUE(std::filesystem::create_directory(path_));
  const auto file = Open("r1");
  EXPECT_EQ(file.status().code(), Code::kInvalid);
  EXPECT_NE(file.status().message().find(path_), std::string::npos) << file.status().message();
}

}  // namespace
}  // namespace tangram::store
