// Streams that are waited for: how often, and for how long.
#include "agent/net/blocking.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "agent/net/testing/certs.h"
#include "agent/net/testing/pair.h"

namespace tangram::net {
namespace {

using std::chrono::milliseconds;
using testing::Pair;
using testing::TestCa;

// A reader that a packet wakes each time takes the processor from whoever sends.
TEST(ReadAll, WhoWaitsForMuchIsNotWokenForEveryPacket) {
  const TestCa ca;
  for (const bool secure : {true, false}) {
    const auto credentials = [&](const char* pod) {
      return secure ? ca.Open("w", "agent", pod) : Credentials::Insecure();
    };
    const Pair pair(credentials("p0"), credentials("p1"));
    ASSERT_TRUE(pair.Agreed());
    std::vector<std::byte> sent(4 << 20, std::byte{7}), got(sent.size());
    rusage used{};
    const auto began = std::chrono::steady_clock::now();
    std::thread reader([&] {
      EXPECT_TRUE(ReadAll(*pair.server, got, {}).ok());
      getrusage(RUSAGE_THREAD, &used);
    });
    for (size_t at = 0; at < sent.size(); at += 4096) {
      EXPECT_TRUE(WriteAll(*pair.client, std::span(sent).subspan(at, 4096), {}).ok());
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    reader.join();
    EXPECT_TRUE(got == sent);
    // It looks at its stop token ten times a second, however long this takes.
    const auto looks = (std::chrono::steady_clock::now() - began) / milliseconds(100);
    EXPECT_LT(used.ru_nvcsw, 100 + looks) << (secure ? "TLS" : "plain") << ": 1,024 packets";
  }
}

// Passes bytes on in small parts, with pauses: a record of TLS never comes whole.
constexpr size_t kDrip = 5000;
class Drips {
 public:
  Drips() : from_(testing::Sockets()), to_(testing::Sockets()) {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd both[] = {{from_.second.get(), POLLIN, 0}, {to_.first.get(), POLLIN, 0}};
        (void)poll(both, 2, 10);
        Pass(from_.second.get(), to_.first.get());
        Pass(to_.first.get(), from_.second.get());
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  std::pair<UniqueFd, UniqueFd> ends() { return {std::move(from_.first), std::move(to_.second)}; }

 private:
  static void Pass(int from, int to) {
    std::array<std::byte, kDrip> some;
    const ssize_t n = recv(from, some.data(), some.size(), 0);
    for (ssize_t put = 0; put < n;) {
      put += std::max<ssize_t>(0, send(to, some.data() + put, static_cast<size_t>(n - put), 0));
    }
  }

  std::pair<UniqueFd, UniqueFd> from_, to_;
  std::jthread thread_;  // last
};

// What is waited for is never more than is sure to come: also of a record that is here in part.
TEST(ReadAll, WhatHasComeIsNotWaitedForAnyLonger) {
  const TestCa ca;
  for (const bool secure : {true, false}) {
    const auto credentials = [&](const char* pod) {
      return secure ? ca.Open("w", "agent", pod) : Credentials::Insecure();
    };
    Drips drips;
    const Pair pair(drips.ends(), credentials("p0"), credentials("p1"));
    ASSERT_TRUE(pair.Agreed());
    std::vector<std::chrono::duration<double>> took;
    for (size_t i = 0; i < 40; ++i) {
      // The last of the drips has a few bytes, fewer than what TLS adds to a record.
      const std::vector<std::byte> sent((i % 7 + 1) * kDrip - 10, std::byte(i));
      std::vector<std::byte> got(sent.size());
      const auto began = std::chrono::steady_clock::now();
      ASSERT_TRUE(WriteAll(*pair.client, sent, {}).ok());
      ASSERT_TRUE(ReadAll(*pair.server, got, {}).ok());
      EXPECT_TRUE(got == sent);
      took.emplace_back(std::chrono::steady_clock::now() - began);
    }
    // Of those that the machine let through fastest.
    std::ranges::nth_element(took, took.begin() + 5);
    EXPECT_LT(took[5], milliseconds(80)) << "each ended with a look at the clock";
  }
}

TEST(ReadAll, WhoSendsAByteNowAndThenIsHeard) {
  const Pair pair(Credentials::Insecure(), Credentials::Insecure());
  ASSERT_TRUE(pair.Agreed());
  std::vector<std::byte> got(1 << 20);
  const std::byte one{1};
  std::stop_source stop;
  Status ended;
  std::thread reader([&] { ended = ReadAll(*pair.server, got, stop.get_token()); });
  // Until what was sent has come and was read.
  const auto heard = [&] {
    for (int tries = 0; tries < 6000; ++tries) {
      int sent = -1, unread = -1;
      EXPECT_EQ(ioctl(pair.client->fd(), SIOCOUTQ, &sent), 0);
      EXPECT_EQ(ioctl(pair.server->fd(), FIONREAD, &unread), 0);
      if (sent == 0 && unread == 0) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(WriteAll(*pair.client, {&one, 1}, {}).ok());
    EXPECT_TRUE(heard());
  }
  stop.request_stop();
  reader.join();
  EXPECT_EQ(ended.message(), "stopped");
  EXPECT_EQ(got[1], one) << "lies there, far below what is waited for";
  std::thread last([&] { ended = ReadAll(*pair.server, got, {}); });
  ASSERT_EQ(shutdown(pair.client->fd(), SHUT_RDWR), 0);
  last.join();
  EXPECT_NE(ended.message().find("closed"), std::string::npos) << ended.message();
}

}  // namespace
}  // namespace tangram::net
