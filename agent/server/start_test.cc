// Start of the agent program: its output when it cannot start.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "agent/net/testing/certs.h"

namespace tangram {
namespace {

struct Ended {
  int code = -1;
  std::string says;    // on stderr
  std::string report;  // of the recording driver, if it was used
};

// Starts an agent without a world and waits for its end. `driver`: the library that the loader
// finds as the GPU driver; empty: this machine's, or the one that the settings name.
Ended Start(const std::string& settings, const std::string& driver = "") {
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / ("start-test-" + std::to_string(getpid()));
  std::filesystem::create_directories(dir);
  const net::TlsFiles tls =
      net::testing::TestCa().Write("spiffe://tangram/w/agent/p", dir.string(), "p");
  std::ofstream(dir / "agent.yaml")
      << "{world: w, pod: p, pod_uid: u, node: n, memory_bytes: 1000, kv_bytes: 1000, "
         "granule_rows: 16, checkpoint: "
      << dir.string() << "/none, revision: r, listen: '127.0.0.1:0', data_listen: '127.0.0.1:0', "
      << "engine_socket: " << dir.string() << "/s, engine_token_file: " << dir.string()
      << "/t, tls: {ca: " << tls.ca << ", cert: " << tls.cert << ", key: " << tls.key
      << "}, log: {level: \"off\"}, " << settings << "}\n";
  std::string environment = "FAKE_CUDA_REPORT=" + dir.string() + "/report ";
  if (!driver.empty()) {
    std::filesystem::create_symlink(driver, dir / "libcuda.so.1");
    environment += "LD_LIBRARY_PATH=" + dir.string() + " ";
  }
  const std::string command =
      environment + TANGRAM_AGENT " --config " + (dir / "agent.yaml").string() + " 2>&1 >/dev/null";
  Ended out;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 512> part{};
  while (fgets(part.data(), part.size(), pipe) != nullptr) out.says += part.data();
  out.code = WEXITSTATUS(pclose(pipe));
  std::ifstream report(dir / "report");
  std::getline(report, out.report, '\0');
  std::filesystem::remove_all(dir);
  return out;
}

TEST(AgentProgram, RejectsCudaPlatformWithoutGpuInOneLine) {
  const Ended ended = Start("device: cuda, page_bytes: 4096");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.says.find('\n'), ended.says.size() - 1) << ended.says;
#ifdef TANGRAM_FAKE_CUDA
  // On a machine with a GPU, these pages are too small for it.
  const bool no_driver =
      ended.says.starts_with("tangram-agent: cuda: driver not found (libcuda.so.1");
  EXPECT_TRUE(no_driver || ended.says.starts_with("tangram-agent: page_bytes = 4096: NVIDIA"))
      << ended.says;
#else
  EXPECT_TRUE(ended.says.starts_with("tangram-agent: platform cuda: not part of this build"))
      << ended.says;
#endif
}

#ifdef TANGRAM_FAKE_CUDA
TEST(AgentProgram, UsesDriverFoundByLoader) {
  const Ended small = Start("device: cuda, page_bytes: 4096", TANGRAM_FAKE_CUDA);
  EXPECT_EQ(small.code, 1);
  EXPECT_TRUE(
      small.says.starts_with("tangram-agent: page_bytes = 4096: NVIDIA H200 (recorded) maps "
                             "handles of multiples of 2097152"))
      << small.says;
  const Ended none =
      Start("device: cuda, page_bytes: 2097152, device_ordinal: 1", TANGRAM_FAKE_CUDA);
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(
      none.says.starts_with("tangram-agent: cuda: there is no device 1: this process may "
                            "use 1, counted from 0"))
      << none.says;
  const Ended fit = Start("device: cuda, page_bytes: 2097152", TANGRAM_FAKE_CUDA);
  EXPECT_EQ(fit.code, 1);
  EXPECT_NE(fit.says.find("/none"), std::string::npos)
      << "it has memory then, and misses the checkpoint: " << fit.says;
}

TEST(AgentProgram, UsesConfiguredDriver) {
  const std::string driver = TANGRAM_FAKE_CUDA;
  const Ended fit = Start("device: cuda, page_bytes: 2097152, cuda_driver: " + driver);
  EXPECT_EQ(fit.code, 1);
  EXPECT_NE(fit.says.find("/none"), std::string::npos) << fit.says;
  EXPECT_EQ(fit.report, "ended\n") << "what it had of the GPU it gave back";
  const Ended none = Start("device: cuda, cuda_driver: /nowhere/libcuda.so");
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(none.says.starts_with("tangram-agent: cuda: driver not found (/nowhere/libcuda.so"))
      << none.says;
  EXPECT_EQ(none.report, "");
}
#endif

// A configured library must exist; with `auto`, bytes go by TCP instead.
TEST(AgentProgram, RejectsMissingCommLibraryInOneLine) {
  const Ended ended = Start("comm_library: nccl");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.says, "tangram-agent: platform host has no comm library named 'nccl'\n");
#ifdef TANGRAM_FAKE_CUDA
  const std::string gpu = "device: cuda, page_bytes: 2097152, ";
  const Ended none =
      Start(gpu + "comm_library: nccl, comm_library_path: libnccl-not-here.so", TANGRAM_FAKE_CUDA);
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(none.says.starts_with("tangram-agent: nccl: library not found (libnccl-not-here.so"))
      << none.says;
  const Ended other = Start(
      gpu + "comm_library: auto, insecure_fabric: true, comm_library_path: libnccl-not-here.so",
      TANGRAM_FAKE_CUDA);
  EXPECT_NE(other.says.find("/none"), std::string::npos)
      << "it goes by TCP, and misses the checkpoint: " << other.says;
#endif
}

TEST(AgentProgram, RejectsUnknownPlatformListingAvailableOnes) {
  const Ended ended = Start("device: abacus");
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.says.find("'abacus'; available: host, cuda\n"), std::string::npos) << ended.says;
}

}  // namespace
}  // namespace tangram
