// For tests: a data port on loopback, and memory that it may send.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/base/fault.h"
#include "agent/base/testing/hang.h"
#include "agent/base/unique_fd.h"
#include "agent/device/hash.h"
#include "agent/mover/data_server.h"
#include "agent/mover/grants.h"
#include "agent/mover/tcp_transport.h"
#include "agent/net/testing/certs.h"

namespace tangram::mover::testing {

// For KV, in tests that do not test its timeout: a busy machine is slower than the product's limit.
inline constexpr net::WaitLimits kPatientKv{tangram::testing::kHang, tangram::testing::kHang};

inline std::vector<std::byte> Pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = std::byte((i * 31 + seed * 7 + i / 251) & 0xff);
  return out;
}

// Reserves a port of 127.0.0.1 while servers of a test start and stop at it: it is bound and does
// not listen.
class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    EXPECT_EQ(bind(socket_.get(), any, size), 0);
    EXPECT_EQ(getsockname(socket_.get(), any, &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  const UniqueFd socket_;
  std::string address_;
};

class MoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::default_logger();  // before there are threads: TSan does not see into the library
    Start(port_.address());
  }
  void TearDown() override {
    server_.reset();  // it may still send from source_, a member that is destroyed earlier
    ASSERT_TRUE(fault::Arm("").ok());
  }
  void Start(const std::string& listen) {
    auto server =
        DataServer::Start({.listen = listen, .credentials = credentials_, .rest = rest_}, &grants_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }
  // Grants `source_` to pod-0 in spans of the given sizes; targets are `units` of equal size.
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

  const HeldPort port_;
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
