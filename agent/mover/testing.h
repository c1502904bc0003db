// For tests: a data port on loopback, and memory that it may give out.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/base/fault.h"
#include "agent/device/hash.h"
#include "agent/mover/data_server.h"
#include "agent/mover/grants.h"
#include "agent/mover/tcp_transport.h"
#include "agent/net/testing/certs.h"

namespace tangram::mover::testing {

inline std::vector<std::byte> Pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = std::byte((i * 31 + seed * 7 + i / 251) & 0xff);
  return out;
}

class MoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::default_logger();  // before there are threads: TSan does not see into the library
    Start("127.0.0.1:0");
  }
  void TearDown() override {
    server_.reset();  // it may still send from source_, which is a member and goes first
    ASSERT_TRUE(fault::Arm("").ok());
  }
  void Start(const std::string& listen) {
    auto server =
        DataServer::Start({.listen = listen, .credentials = credentials_, .rest = rest_}, &grants_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }
  // Grants pod-0 `source_` in spans of the given sizes; targets are `units` of equal size.
  std::string Issue(const std::vector<size_t>& spans, const std::string& pod = "pod-0") {
    Grant grant;
    grant.pod = pod;
    size_t at = 0;
    for (const size_t bytes : spans) {
      grant.pieces.push_back(device::Memory::Own(std::span(source_).subspan(at, bytes)));
      at += bytes;
    }
    return grants_.Issue(std::move(grant));
  }
  std::vector<Target> Targets(size_t units) {
    std::vector<Target> out;
    const size_t unit = source_.size() / units;
    copy_.assign(source_.size(), std::byte{0});
    for (size_t i = 0; i < units; ++i) {
      out.push_back({device::Memory::Own(std::span(copy_).subspan(i * unit, unit)),
                     device::HashOf(std::span(source_).subspan(i * unit, unit))});
    }
    return out;
  }
  Status Pull(const std::string& token, const std::vector<Target>& targets,
              std::stop_token stop = {}) {
    pulled_ = 0;
    return PieceLink(credentials_, address_).Pull(token, targets, stop, [&](uint64_t bytes) {
      pulled_ += bytes;
    });
  }

  net::testing::TestCa ca_;
  std::shared_ptr<net::Credentials> credentials_ = ca_.Open("w", "agent", "pod-0");
  std::shared_ptr<net::Credentials> impostor_;
  std::chrono::milliseconds rest_ = std::chrono::minutes(5);
  Grants grants_;
  std::unique_ptr<DataServer> server_;
  std::string address_;
  std::vector<std::byte> source_ = Pattern(6 << 20, 1), copy_;
  uint64_t pulled_ = 0;
};

}  // namespace tangram::mover::testing
