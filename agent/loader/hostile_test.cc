// Malicious folders: opening one ends soon, costs little, and reports the problem.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>

#include "agent/loader/checkpoint.h"
#include "agent/loader/config.h"
#include "agent/loader/testing/writer.h"

namespace tangram::loader {
namespace {

using testing::MakeTensors;
using testing::ModelShape;
using testing::TempDir;
using testing::WriteCheckpoint;
using testing::WriteFile;

constexpr uint64_t kMiB = 1ULL << 20;

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override { WriteCheckpoint(dir_.path(), shape_, MakeTensors(shape_, 1), 2); }
  std::string At(const std::string& name) const { return dir_.path() + "/" + name; }
  // A FIFO in place of the file.
  void Fifo(const std::string& name) const {
    std::filesystem::remove(At(name));
    ASSERT_EQ(mkfifo(At(name).c_str(), 0600), 0);
  }
  // Extends it by a hole: no disk space is used.
  void Grow(const std::string& name, uint64_t bytes) const {
    std::filesystem::resize_file(At(name), bytes);
  }
  // The error of Open. If Open blocks, the program ends, since its thread cannot.
  std::string Refusal() const {
    auto opened = std::async(std::launch::async, [&] {
      const auto checkpoint = Checkpoint::Open(dir_.path(), 8, 4096);
      return checkpoint.ok() ? std::string("opened") : checkpoint.status().message();
    });
    if (opened.wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
      std::fprintf(stderr, "Open hangs\n");
      std::abort();
    }
    return opened.get();
  }
  void ExpectSays(const std::string& part) const {
    const std::string refusal = Refusal();
    EXPECT_NE(refusal.find(part), std::string::npos) << "wanted '" << part << "' in: " << refusal;
  }

  TempDir dir_;
  ModelShape shape_;
};

uint64_t MostResident() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

TEST_F(Hostile, RejectsNonRegularFilesWithoutBlocking) {
  ASSERT_EQ(Refusal(), "opened");
  for (const char* name :
       {"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
    std::filesystem::rename(At(name), At("kept"));
    Fifo(name);
    ExpectSays(At(name) + ": not a regular file");
    std::filesystem::remove(At(name));
    std::filesystem::create_directory(At(name));
    ExpectSays(At(name) + ": not a regular file");
    std::filesystem::remove(At(name));
    std::filesystem::create_symlink("/dev/zero", At(name));
    ExpectSays(At(name) + ": not a regular file");
    std::filesystem::remove(At(name));
    std::filesystem::rename(At("kept"), At(name));
  }
  WriteFile(At("model.safetensors.index.json"), R"({"weight_map":{"lm_head.weight":".."}})");
  ExpectSays("/..: not a regular file");
}

TEST_F(Hostile, RejectsOversizedTextFiles) {
  const uint64_t before = MostResident();
  Grow("model.safetensors.index.json", 1ULL << 32);
  ExpectSays("4294967296 bytes exceed the limit of");
  std::filesystem::remove(At("model.safetensors.index.json"));
  Grow("config.json", 1ULL << 32);
  ExpectSays("4294967296 bytes exceed the limit of");
  EXPECT_LT(MostResident() - before, 256 * kMiB);
}

// Numbers far above the content of the files: the first missing tensor ends the open.
TEST_F(Hostile, RejectsHugeNumbersWithoutAllocating) {
  const uint64_t before = MostResident();
  shape_.experts = 1 << 24;
  WriteFile(At("config.json"), testing::ConfigJson(shape_));
  ExpectSays("model.layers.0.mlp.experts.4.gate_proj.weight");
  EXPECT_LT(MostResident() - before, 256 * kMiB);
}

TEST_F(Hostile, RejectsManyLayersWithoutLinearSearch) {
  shape_.layers = 1 << 24;
  shape_.mlp_only_layers.clear();
  for (uint32_t layer = 0; layer < 100'000; ++layer) {
    shape_.mlp_only_layers.push_back((1U << 24) + layer);
  }
  WriteFile(At("config.json"), testing::ConfigJson(shape_));
  ExpectSays("num_hidden_layers");
}

}  // namespace
}  // namespace tangram::loader
