#include "agent/server/config.h"

#include <gtest/gtest.h>

namespace tangram {
namespace {

const std::string kGood = R"(world: demo
pod: pod-0
pod_uid: abc
node: n
memory_bytes: 1000
kv_bytes: 1000
granule_rows: 16
checkpoint: /m
revision: r1
listen: 127.0.0.1:0
data_listen: 127.0.0.1:0
engine_socket: /s
engine_token_file: /t
tls: {ca: a, cert: b, key: c}
)";

std::string ErrorOf(const std::string& text) {
  const auto config = ParseConfig(text, "f.yaml");
  return config.ok() ? "" : config.status().message();
}

TEST(Config, GoodFileWithDefaults) {
  const auto config = ParseConfig(kGood, "f.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->ranks, 1u);
  EXPECT_EQ(config->granule_rows, 16u);
  std::string without = kGood;
  without.erase(without.find("granule_rows"), std::string("granule_rows: 16\n").size());
  EXPECT_EQ(ParseConfig(without, "f.yaml")->granule_rows, 0u);  // the loader's rule
  EXPECT_EQ(config->load_threads, 2u);
  EXPECT_EQ(config->staging_percent, 100u);
  EXPECT_EQ(config->max_step_stretch_percent, 0u);
  EXPECT_EQ(ParseConfig(kGood + "load_threads: 16\n", "f.yaml")->load_threads, 16u);
  EXPECT_EQ(config->device_ordinal, 0u);
  EXPECT_EQ(ParseConfig(kGood + "device_ordinal: 3\n", "f.yaml")->device_ordinal, 3u);
  EXPECT_EQ(config->cuda_driver, "libcuda.so.1");
  EXPECT_EQ(ParseConfig(kGood + "cuda_driver: /d/libcuda.so\n", "f.yaml")->cuda_driver,
            "/d/libcuda.so");
  EXPECT_EQ(config->slab_format, v1::SLAB_FORMAT_GRANULE_MAJOR);
  EXPECT_EQ(ParseConfig(kGood + "slab_format: row-major\n", "f.yaml")->slab_format,
            v1::SLAB_FORMAT_ROW_MAJOR);
  EXPECT_EQ(ParseConfig(kGood + "slab_format: granule-major\n", "f.yaml")->slab_format,
            v1::SLAB_FORMAT_GRANULE_MAJOR);
  EXPECT_EQ(config->comm_library, "auto");
  const auto placed = ParseConfig(
      kGood + "comm_library: ucx\ncomm_library_path: /l\nnvlink_domain: domain-1\nrail: eth1\n",
      "f.yaml");
  EXPECT_EQ(placed->comm_library + placed->comm_library_path + placed->nvlink_domain + placed->rail,
            "ucx/ldomain-1eth1");
  EXPECT_EQ(config->advertise, "127.0.0.1");
  EXPECT_TRUE(config->log_json);
  EXPECT_FALSE(config->insecure_fabric);
  EXPECT_TRUE(ParseConfig(kGood + "insecure_fabric: true\n", "f.yaml")->insecure_fabric);
  EXPECT_EQ(config->hashes_file, "") << "nothing outlives an agent that says nothing of its ranks";
  const auto beside = ParseConfig(kGood + "in_world_file: /r/in-world\n", "f.yaml");
  EXPECT_EQ(beside->hashes_file, "/r/in-world.hashes");
  const auto apart =
      ParseConfig(kGood + "in_world_file: /r/in-world\nhashes_file: /a/h\n", "f.yaml");
  EXPECT_EQ(apart->hashes_file, "/a/h");
}

TEST(Config, ErrorsNameLineAndKey) {
  EXPECT_EQ(ErrorOf(kGood + "colour: blue\n"), "f.yaml:15: colour: unknown key");
  EXPECT_EQ(ErrorOf(kGood + "ranks: 1.5\n"), "f.yaml:15: ranks: must be a whole number, is '1.5'");
  EXPECT_EQ(ErrorOf(kGood + "ranks: -1\n"), "f.yaml:15: ranks: must be a whole number, is '-1'");
  EXPECT_EQ(ErrorOf(kGood + "comm_library: string\n"),
            "f.yaml:15: comm_library: must be auto or nccl or none or ucx");
  EXPECT_EQ(ErrorOf(kGood + "ranks: 0\n"), "f.yaml:15: ranks: 0 is not in the range 1..64");
  EXPECT_EQ(ErrorOf(kGood + "load_threads: 0\n"),
            "f.yaml:15: load_threads: 0 is not in the range 1..256");
  EXPECT_EQ(ErrorOf(kGood + "device_ordinal: 256\n"),
            "f.yaml:15: device_ordinal: 256 is not in the range 0..255");
  EXPECT_EQ(ErrorOf(kGood + "slab_format: columns\n"),
            "f.yaml:15: slab_format: must be granule-major or row-major");
  EXPECT_EQ(ErrorOf(kGood + "slab_format: [row-major]\n"),
            "f.yaml:15: slab_format: must be granule-major or row-major");
  EXPECT_EQ(ErrorOf(kGood + "staging_percent: 0\n"),
            "f.yaml:15: staging_percent: 0 is not in the range 1..100");
  EXPECT_EQ(ErrorOf(kGood + "max_step_stretch_percent: 0\n"),
            "f.yaml:15: max_step_stretch_percent: 0 is not in the range 1..10000");
  EXPECT_EQ(ErrorOf(kGood + "ranks: 99999999999999999999999\n"),
            "f.yaml:15: ranks: must be a whole number, is '99999999999999999999999'");
  EXPECT_EQ(ErrorOf(kGood + "log: {json: yes}\n"), "f.yaml:15: log.json: must be true or false");
  EXPECT_EQ(ErrorOf(kGood + "log: {depth: 3}\n"), "f.yaml:15: log.depth: unknown key");
  EXPECT_EQ(ErrorOf(kGood + "ranks: 1\nranks: 2\n"), "f.yaml:16: ranks: duplicate key");
  EXPECT_EQ(ErrorOf(kGood + "ready_file: \"/r\\0.json\"\n"),
            "f.yaml:15: ready_file: must not contain a zero byte");
  EXPECT_NE(ErrorOf("world: a\n").find("pod: missing"), std::string::npos);
  EXPECT_NE(ErrorOf("- a\n").find("must be a mapping"), std::string::npos);
  EXPECT_NE(ErrorOf("world: [\n").find("f.yaml:"), std::string::npos);
  std::string bad_port = kGood;
  bad_port.replace(bad_port.find("listen: 127.0.0.1:0"), 19, "listen: nowhere....");
  EXPECT_NE(ErrorOf(bad_port).find("listen: must be host:port"), std::string::npos);
  std::string slash = kGood;
  slash.replace(slash.find("pod-0"), 5, "p/../");
  EXPECT_NE(ErrorOf(slash).find("letters, digits"), std::string::npos);
}

TEST(Config, OverridesReplaceFileValues) {
  const auto config = ParseConfig(kGood, "f.yaml", {"pod=pod-7", "advertise=10.0.0.7", "ranks=2"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->pod, "pod-7");
  EXPECT_EQ(config->advertise, "10.0.0.7");
  EXPECT_EQ(config->ranks, 2u);
  const auto error = [](const std::string& override) {
    const auto config = ParseConfig(kGood, "f.yaml", {override});
    return config.ok() ? "" : config.status().message();
  };
  EXPECT_EQ(error("colour=blue"), "f.yaml and --set: colour: unknown key");
  EXPECT_EQ(error("ranks=two"), "f.yaml and --set: ranks: must be a whole number, is 'two'");
  EXPECT_EQ(error("ranks"), "--set ranks: must be KEY=VALUE");
  EXPECT_EQ(error("=1"), "--set =1: must be KEY=VALUE");
}

}  // namespace
}  // namespace tangram
