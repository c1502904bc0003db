// Blocking operations on streams: the number of wake-ups and the timeouts.
#include "agent/net/blocking.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "agent/base/testing/fake_time.h"
#include "agent/net/testing/certs.h"
#include "agent/net/testing/pair.h"

namespace tangram::net {
namespace {

using std::chrono::milliseconds;
using tangram::testing::FakeTime;
using testing::Pair;
using testing::TestCa;

// The steady clock. It counts returns of poll() because of the socket. (Polls also end ten times a
// second to check the stop token, so other returns depend on the test's duration.)
class CountingTime final : public TimeSource {
 public:
  TimePoint Now() const override { return SteadyTime().Now(); }
  int Poll(pollfd* fds, nfds_t count, int timeout_ms) override {
    const int ready = SteadyTime().Poll(fds, count, timeout_ms);
    woken += ready > 0 ? 1 : 0;
    return ready;
  }
  int woken = 0;
};

TEST(ReadAll, TimesOutWhenPeerIsUnresponsive) {
  const Pair pair(Credentials::Insecure(), Credentials::Insecure());
  ASSERT_TRUE(pair.Agreed());
  std::vector<std::byte> got(100);
  ASSERT_TRUE(WriteAll(*pair.client, std::span(got).first(99), {}).ok());
  FakeTime time;
  const Status status = ReadAll(*pair.server, got, {}, time);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "the peer is unresponsive");
  EXPECT_GE(time.Elapsed(), limits::kDataSilence);
  EXPECT_LT(time.Elapsed(), limits::kDataSilence + std::chrono::seconds(1));
}

// As for KV, for which a flip waits.
TEST(ReadAll, UsesShorterTimeoutOfStream) {
  const Pair pair(Credentials::Insecure(), Credentials::Insecure());
  ASSERT_TRUE(pair.Agreed());
  pair.server->set_silence(limits::kKvSilence);
  std::vector<std::byte> got(100);
  FakeTime time;
  EXPECT_EQ(ReadAll(*pair.server, got, {}, time).message(), "the peer is unresponsive");
  EXPECT_GE(time.Elapsed(), limits::kKvSilence);
  EXPECT_LE(time.Elapsed(), limits::kKvSilence + 2 * limits::kStopLook);
}

// A reader that the machine stopped for a minute does not blame its peer.
TEST(ReadAll, IgnoresTimeWhileProcessWasStopped) {
  const Pair pair(Credentials::Insecure(), Credentials::Insecure());
  ASSERT_TRUE(pair.Agreed());
  pair.server->set_silence(limits::kKvSilence);
  std::vector<std::byte> sent(100, std::byte{7}), got(100);
  FakeTime time;
  int looks = 0;
  time.idle = [&] {
    if (++looks == 1) time.Advance(std::chrono::minutes(1));
    if (looks == 2) EXPECT_TRUE(WriteAll(*pair.client, sent, {}).ok());
    return looks <= 2;
  };
  const Status status = ReadAll(*pair.server, got, {}, time);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(got == sent);
}

// A reader that every packet wakes takes processor time from the sender.
TEST(ReadAll, DoesNotWakeReaderForEveryPacket) {
  const TestCa ca;
  for (const bool secure : {true, false}) {
    const auto credentials = [&](const char* pod) {
      return secure ? ca.Open("w", "agent", pod) : Credentials::Insecure();
    };
    const Pair pair(credentials("p0"), credentials("p1"));
    ASSERT_TRUE(pair.Agreed());
    std::vector<std::byte> sent(4 << 20, std::byte{7}), got(sent.size());
    CountingTime time;
    std::thread reader([&] { EXPECT_TRUE(ReadAll(*pair.server, got, {}, time).ok()); });
    for (size_t at = 0; at < sent.size(); at += 4096) {
      EXPECT_TRUE(WriteAll(*pair.client, std::span(sent).subspan(at, 4096), {}).ok());
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    reader.join();
    EXPECT_TRUE(got == sent);
    EXPECT_LT(time.woken, 100) << (secure ? "TLS" : "plain") << ": 1,024 packets";
  }
}

// Forwards bytes in small parts: a TLS record never arrives as a whole.
constexpr size_t kDrip = 5000;
class Drips {
 public:
  Drips() : from_(testing::Sockets()), to_(testing::Sockets()) {}
  std::pair<UniqueFd, UniqueFd> ends() { return {std::move(from_.first), std::move(to_.second)}; }
  // Forwards one part of the available bytes; false: none available.
  bool Drip() {
    const bool there = Pass(from_.second.get(), to_.first.get());
    return Pass(to_.first.get(), from_.second.get()) || there;
  }

 private:
  static bool Pass(int from, int to) {
    std::array<std::byte, kDrip> some;
    const ssize_t n = recv(from, some.data(), some.size(), 0);
    for (ssize_t put = 0; put < n;) {
      put += std::max<ssize_t>(0, send(to, some.data() + put, static_cast<size_t>(n - put), 0));
    }
    return n > 0;
  }

  std::pair<UniqueFd, UniqueFd> from_, to_;
};

// A reader never waits for more bytes than are certain to arrive, also when a part of a record has
// arrived.
TEST(ReadAll, ReturnsAsSoonAsBytesArrive) {
  const TestCa ca;
  for (const bool secure : {true, false}) {
    const auto credentials = [&](const char* pod) {
      return secure ? ca.Open("w", "agent", pod) : Credentials::Insecure();
    };
    Drips drips;
    auto ends = drips.ends();
    std::jthread dripping([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (!drips.Drip()) std::this_thread::sleep_for(milliseconds(1));
      }
    });
    const Pair pair(std::move(ends), credentials("p0"), credentials("p1"));
    dripping = {};
    ASSERT_TRUE(pair.Agreed());
    FakeTime time;
    time.idle = [&] { return drips.Drip(); };
    for (size_t i = 0; i < 14; ++i) {
      // The last part has a few bytes, fewer than TLS adds to a record.
      const std::vector<std::byte> sent((i % 7 + 1) * kDrip - 10, std::byte(i));
      std::vector<std::byte> got(sent.size());
      ASSERT_TRUE(WriteAll(*pair.client, sent, {}).ok());
      ASSERT_TRUE(ReadAll(*pair.server, got, {}, time).ok());
      EXPECT_TRUE(got == sent);
      EXPECT_EQ(time.Elapsed(), milliseconds(0)) << "it ended with a look at the clock";
    }
  }
}

TEST(ReadAll, ReadsSlowlyArrivingBytes) {
  const Pair pair(Credentials::Insecure(), Credentials::Insecure());
  ASSERT_TRUE(pair.Agreed());
  std::vector<std::byte> got(1 << 20);
  const std::byte one{1};
  std::stop_source stop;
  Status ended;
  std::thread reader([&] { ended = ReadAll(*pair.server, got, stop.get_token()); });
  // Waits until the sent bytes have arrived and were read.
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
