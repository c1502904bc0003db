// Runs of an expert for several ranks together: bytes, hashes, number and size of the reads, and
// files that return less than requested.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "agent/device/hash.h"
#include "agent/device/platform.h"
#include "agent/loader/shared_reads.h"
#include "agent/loader/testing/writer.h"

namespace {
std::atomic<size_t> most_bytes{0};  // maximum of one read; 0: no limit
}

// Replaces the C library's preadv: files may return less than requested.
extern "C" ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  const size_t most = most_bytes;
  iovec first = parts[0];
  if (most > 0) {
    first.iov_len = std::min(first.iov_len, most);
    parts = &first;
    count = 1;
  }
  return syscall(SYS_preadv, fd, parts, count, offset, 0);
}

namespace tangram::loader {
namespace {

using testing::ModelShape;

constexpr uint32_t kRows = 8;

class SharedReadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    shape_.moe_inner = 48;  // 6 granules
    shape_.hidden = 80;
    testing::WriteCheckpoint(dir_.path(), shape_, testing::MakeTensors(shape_, 3), 2);
    auto opened = Checkpoint::Open(dir_.path(), kRows, 4096);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    checkpoint_ = std::move(opened).value();
    unit_ = checkpoint_->geometry().granule_bytes();
    whole_.resize(6 * unit_);
    ASSERT_TRUE(checkpoint_->ReadGranules(1, 2, {0, 6}, whole_).ok());
  }
  void TearDown() override { most_bytes = 0; }

  std::vector<std::byte> Truth(layout::Run run) const {
    return {whole_.begin() + static_cast<ptrdiff_t>(run.start * unit_),
            whole_.begin() + static_cast<ptrdiff_t>((run.start + run.count) * unit_)};
  }
  uint64_t HashOf(uint32_t granule) const {
    return device::HashOf(std::span(whole_).subspan(granule * unit_, unit_));
  }
  Checkpoint::Reads Since(const Checkpoint::Reads& before) const {
    const Checkpoint::Reads now = checkpoint_->reads();
    return {now.calls - before.calls, now.bytes - before.bytes};
  }
  SharedReads::Want Want(layout::Run run, std::vector<std::byte>* to) const {
    to->assign(run.count * unit_, std::byte{0});
    return {1, 2, run, device::Memory::Own(*to), {}};
  }

  testing::TempDir dir_;
  ModelShape shape_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  uint64_t unit_ = 0;
  std::vector<std::byte> whole_;  // layer 1, expert 2
};

TEST_F(SharedReadsTest, ReadsRunsAndHashesTheirGranules) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> cuts{0, 6};
    for (int i = 0; i < 3; ++i) cuts.push_back(random() % 7);
    std::sort(cuts.begin(), cuts.end());
    std::vector<layout::Run> runs;
    for (size_t i = 1; i < cuts.size(); ++i) {
      if (random() % 3 > 0) runs.push_back({cuts[i - 1], cuts[i] - cuts[i - 1]});
    }
    std::shuffle(runs.begin(), runs.end(), random);
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<uint64_t>> hashes;
    uint64_t bytes = 0;
    for (const layout::Run& run : runs) {
      out.emplace_back(run.count * unit_);
      hashes.emplace_back(run.count);
      bytes += out.back().size();
    }
    std::vector<Checkpoint::Target> targets;
    for (size_t i = 0; i < runs.size(); ++i) targets.push_back({runs[i], out[i], hashes[i]});
    const auto before = checkpoint_->reads();
    most_bytes = round % 2 == 0 ? 0 : 1 + random() % 500;
    const Status read = checkpoint_->ReadRuns(1, 2, targets);
    most_bytes = 0;
    ASSERT_TRUE(read.ok()) << read.message();
    EXPECT_EQ(Since(before).bytes, bytes);
    for (size_t i = 0; i < runs.size(); ++i) {
      ASSERT_EQ(out[i], Truth(runs[i])) << runs[i].start << "+" << runs[i].count;
      for (uint32_t g = 0; g < runs[i].count; ++g) {
        EXPECT_EQ(hashes[i][g], HashOf(runs[i].start + g));
      }
    }
  }
}

TEST_F(SharedReadsTest, RejectsDuplicateGranule) {
  std::vector<std::byte> a(2 * unit_), b(unit_);
  const std::vector<Checkpoint::Target> targets{{{2, 2}, a, {}}, {{3, 1}, b, {}}};
  const Status read = checkpoint_->ReadRuns(1, 2, targets);
  EXPECT_EQ(read.code(), Code::kInvalid);
  EXPECT_NE(read.message().find("granules 3..4 of layer 1, expert 2"), std::string::npos)
      << read.message();
}

// Three shards of an expert: the first rank reads all of it, in a few reads.
TEST_F(SharedReadsTest, ReadsShardsOfSeveralRanksTogether) {
  SharedReads reads(checkpoint_);
  std::vector<std::vector<std::byte>> to(3);
  std::vector<std::unique_ptr<SharedReads::List>> lists;
  for (uint32_t r = 0; r < 3; ++r) lists.push_back(reads.Enrol({Want({2 * r, 2}, &to[r])}));
  const auto before = checkpoint_->reads();
  for (uint32_t r = 0; r < 3; ++r) {
    const auto hashes = lists[r]->Bring(0);
    ASSERT_TRUE(hashes.ok()) << hashes.status().message();
    EXPECT_EQ(*hashes, (std::vector<uint64_t>{HashOf(2 * r), HashOf(2 * r + 1)}));
    EXPECT_EQ(to[r], Truth({2 * r, 2}));
  }
  EXPECT_EQ(Since(before).bytes, whole_.size());
  EXPECT_LE(Since(before).calls, 4U) << "gate, up, down in blocks of 64 rows and the rest";
}

TEST_F(SharedReadsTest, DoesNotReadForUnregisteredRank) {
  SharedReads reads(checkpoint_);
  std::vector<std::byte> stays, leaves;
  auto mine = reads.Enrol({Want({0, 3}, &stays)});
  auto other = reads.Enrol({Want({3, 3}, &leaves)});
  other.reset();
  ASSERT_TRUE(mine->Bring(0).ok());
  EXPECT_EQ(stays, Truth({0, 3}));
  EXPECT_EQ(leaves, std::vector<std::byte>(leaves.size())) << "its memory may be another's by now";
}

// Two ranks request the same granule: it is read again, not copied from the other one's memory.
TEST_F(SharedReadsTest, ServesTwoRanksRequestingSameGranule) {
  SharedReads reads(checkpoint_);
  std::vector<std::byte> a, b;
  auto first = reads.Enrol({Want({1, 3}, &a)});
  auto second = reads.Enrol({Want({2, 2}, &b)});
  ASSERT_TRUE(first->Bring(0).ok());
  ASSERT_TRUE(second->Bring(0).ok());
  EXPECT_EQ(a, Truth({1, 3}));
  EXPECT_EQ(b, Truth({2, 2}));
}

TEST_F(SharedReadsTest, FailsAllRanksAndNamesFileWhenFileShrinks) {
  SharedReads reads(checkpoint_);
  std::vector<std::byte> a, b;
  auto first = reads.Enrol({Want({0, 3}, &a)});
  auto second = reads.Enrol({Want({3, 3}, &b)});
  for (const char* file :
       {"/model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors"}) {
    std::filesystem::resize_file(dir_.path() + file, 4096);
  }
  for (const auto* list : {&first, &second}) {
    const auto hashes = (*list)->Bring(0);
    EXPECT_EQ(hashes.status().code(), Code::kInvalid);
    EXPECT_NE(hashes.status().message().find(".safetensors: cannot read at byte "),
              std::string::npos)
        << hashes.status().message();
    EXPECT_NE(hashes.status().message().find("end of file"), std::string::npos);
  }
}

// Ranks that read the same experts in opposite orders, in many threads.
TEST_F(SharedReadsTest, ManyThreadsReadEachByteOnce) {
  SharedReads reads(checkpoint_);
  constexpr uint32_t kRanks = 3;
  std::vector<std::vector<std::vector<std::byte>>> to(kRanks);
  std::vector<std::unique_ptr<SharedReads::List>> lists;
  std::vector<SharedReads::Want> all;
  for (uint32_t r = 0; r < kRanks; ++r) {
    std::vector<SharedReads::Want> wants;
    to[r].resize(size_t{shape_.layers} * shape_.experts);
    for (uint32_t i = 0; i < to[r].size(); ++i) {
      SharedReads::Want want = Want({2 * r, 2}, &to[r][i]);
      want.layer = i / shape_.experts;
      want.expert = i % shape_.experts;
      wants.push_back(want);
    }
    lists.push_back(reads.Enrol(std::move(wants)));
  }
  const auto before = checkpoint_->reads();
  {
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < 2 * kRanks; ++t) {
      threads.emplace_back([&, t] {
        const uint32_t r = t % kRanks;
        for (size_t i = 0; i < to[r].size(); ++i) {
          EXPECT_TRUE(lists[r]->Bring((i + t * to[r].size() / kRanks) % to[r].size()).ok());
        }
      });
    }
  }
  EXPECT_EQ(Since(before).bytes, uint64_t{shape_.layers} * shape_.experts * whole_.size());
  for (uint32_t r = 0; r < kRanks; ++r) {
    for (uint32_t i = 0; i < to[r].size(); ++i) {
      std::vector<std::byte> want(2 * unit_);
      ASSERT_TRUE(
          checkpoint_->ReadGranules(i / shape_.experts, i % shape_.experts, {2 * r, 2}, want).ok());
      EXPECT_EQ(to[r][i], want);
    }
  }
}

}  // namespace
}  // namespace tangram::loader
