#include "agent/gate/frame.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <csignal>
#include <random>
#include <thread>

#include "agent/base/testing/fake_time.h"
#include "agent/base/testing/hang.h"

namespace tangram {
namespace {

using namespace std::chrono_literals;
using testing::FakeTime;
using ::testing::HasSubstr;
using testing::kHang;
using testing::kHangMs;

std::string Framed(const v1::EngineMessage& message) {
  const std::string body = message.SerializeAsString();
  std::string out(4, '\0');
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(body.size() >> (8 * i));
  return out + body;
}

v1::EngineMessage Abort(const std::string& reason) {
  v1::EngineMessage message;
  message.mutable_abort()->set_reason(reason);
  return message;
}

// A message that encodes to `bytes` bytes.
v1::EngineMessage OfBytes(size_t bytes, uint32_t fds = 0) {
  v1::EngineMessage message = Abort(std::string(bytes - 20 - 2 * fds, 'z'));
  for (uint32_t i = 0; i < fds; ++i) message.add_fd_index(i);
  message.mutable_abort()->mutable_reason()->append(bytes - message.ByteSizeLong(), 'z');
  return message;
}

struct Ends {
  explicit Ends(std::chrono::milliseconds send_timeout = kHang, TimeSource& time = SteadyTime()) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    a = std::make_unique<FrameChannel>(UniqueFd(ends[0]), send_timeout, time);
    b = std::make_unique<FrameChannel>(UniqueFd(ends[1]), send_timeout, time);
  }
  std::unique_ptr<FrameChannel> a, b;
};

// A file that its size identifies.
UniqueFd FileOf(off_t bytes) {
  UniqueFd file(memfd_create("t", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(file.get(), bytes), 0);
  return file;
}

// Numbers the descriptors from 0.
std::vector<PassedFd> Passed(const std::vector<int>& fds) {
  std::vector<PassedFd> out;
  for (const int fd : fds) out.push_back({static_cast<uint32_t>(out.size()), fd});
  return out;
}

std::vector<off_t> SizesOf(const Frame& frame) {
  std::vector<off_t> out;
  for (const UniqueFd& fd : frame.fds) out.push_back(lseek(fd.get(), 0, SEEK_END));
  return out;
}

// Limits the numbers of new descriptors while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{most, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(Frame, DecodesStreamSplitAtAnyByte) {
  std::mt19937 random(5);
  std::string stream;
  for (int i = 0; i < 50; ++i) stream += Framed(Abort(std::string(random() % 300, 'r')));
  for (int round = 0; round < 20; ++round) {
    FrameDecoder decoder;
    size_t messages = 0;
    for (size_t at = 0; at < stream.size();) {
      const size_t n = std::min<size_t>(1 + random() % 700, stream.size() - at);
      decoder.Feed(std::string_view(stream).substr(at, n));
      at += n;
      while (true) {
        auto frame = decoder.Next();
        ASSERT_TRUE(frame.ok());
        if (!frame->has_value()) break;
        ++messages;
      }
    }
    EXPECT_EQ(messages, 50u);
  }
}

TEST(Frame, RejectsInvalidBytesPermanently) {
  const std::string huge("\xff\xff\xff\x7f", 4);
  const std::string empty_body("\0\0\0\0", 4);
  const std::string not_proto = std::string("\x03\0\0\0", 4) + "\xff\xff\xff";
  v1::EngineMessage lying = Abort("x");
  lying.add_fd_index(0);
  lying.add_fd_index(1);
  for (const std::string& bytes : {huge, empty_body, not_proto, Framed(lying)}) {
    FrameDecoder decoder;
    decoder.Feed(bytes);
    EXPECT_EQ(decoder.Next().status().code(), Code::kInvalid);
    decoder.Feed(Framed(Abort("later")));
    EXPECT_EQ(decoder.Next().status().code(), Code::kInvalid) << "the stream has no frames left";
  }
}

TEST(Frame, ReplacesInvalidUtf8AndKeepsConnection) {
  Ends ends;
  v1::EngineMessage answer;
  answer.mutable_prepared()->set_message("no room for \xff");
  ASSERT_TRUE(ends.a->Send(answer).ok());
  ASSERT_TRUE(ends.a->Send(Abort("later")).ok());
  const auto came = ends.b->Receive(kHangMs);
  ASSERT_TRUE(came.ok()) << came.status().message();
  EXPECT_EQ(came->value().message.prepared().message(), "no room for ?");
  EXPECT_EQ(ends.b->Receive(kHangMs)->value().message.abort().reason(), "later");
}

TEST(Frame, DeliversDescriptorsWithTheirMessage) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  FrameChannel a{UniqueFd(ends[0]), kHang}, b{UniqueFd(ends[1]), kHang};
  UniqueFd memory(memfd_create("t", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 12345), 0);
  ASSERT_TRUE(a.Send(Abort("first")).ok());
  ASSERT_TRUE(
      a.Send(Abort("second"), std::vector{PassedFd{7, memory.get()}, PassedFd{3, memory.get()}})
          .ok());
  ASSERT_TRUE(a.Send(Abort("third")).ok());
  for (const size_t fds : {0, 2, 0}) {
    auto frame = b.Receive(kHangMs);
    ASSERT_TRUE(frame.ok() && frame->has_value());
    EXPECT_EQ((*frame)->fds.size(), fds);
    for (const UniqueFd& fd : (*frame)->fds) EXPECT_EQ(lseek(fd.get(), 0, SEEK_END), 12345);
    if (fds == 0) continue;
    EXPECT_EQ((*frame)->message.fd_index(0), 7U);
    EXPECT_EQ((*frame)->message.fd_index(1), 3U);
  }
  auto none = b.Receive(0);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  a.Shutdown();
  EXPECT_EQ(b.Receive(kHangMs).status().code(), Code::kUnavailable);
}

TEST(Frame, AcceptsLengthAtLimitAndRejectsLonger) {
  for (const uint32_t over : {0, 1}) {
    const uint32_t length = kMaxFrameBytes + over;
    FrameDecoder decoder;
    decoder.Feed({reinterpret_cast<const char*>(&length), 4});
    EXPECT_EQ(decoder.Next().ok(), over == 0);
  }
}

TEST(Frame, RejectsAndClosesUnclaimedDescriptors) {
  FrameDecoder decoder;
  for (size_t i = 0; i < 2 * kMaxFrameFds; ++i) decoder.FeedFd(UniqueFd(dup(0)));
  EXPECT_TRUE(decoder.Next().ok()) << "of two messages whose bytes are still to come";
  UniqueFd last(dup(0));
  const int number = last.get();
  decoder.FeedFd(std::move(last));
  EXPECT_EQ(decoder.Next().status().code(), Code::kInvalid);
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

TEST(Frame, EachMessageGetsItsOwnDescriptorsInOrder) {
  Ends ends;
  const UniqueFd one = FileOf(1), two = FileOf(2), three = FileOf(3);
  ASSERT_TRUE(ends.a->Send(Abort("a"), Passed({one.get(), two.get()})).ok());
  ASSERT_TRUE(ends.a->Send(Abort("b"), Passed({three.get()})).ok());
  for (const std::vector<off_t>& want : {std::vector<off_t>{1, 2}, std::vector<off_t>{3}}) {
    auto frame = ends.b->Receive(kHangMs);
    ASSERT_TRUE(frame.ok() && frame->has_value());
    EXPECT_EQ(SizesOf(**frame), want);
  }
}

// Descriptors beyond the kernel's limit are sent ahead of the message, in their order.
TEST(Frame, SplitsDescriptorsByKernelLimit) {
  Ends ends;
  const UniqueFd file = FileOf(4);
  for (const size_t count : {kMaxFrameFds, kMaxFrameFds + 1, 3 * kMaxFrameFds}) {
    ASSERT_TRUE(ends.a->Send(Abort("x"), Passed(std::vector(count, file.get()))).ok());
    uint32_t next = 0;
    for (size_t left = count; left > 0;) {
      auto frame = ends.b->Receive(kHangMs);
      ASSERT_TRUE(frame.ok() && frame->has_value()) << frame.status().message();
      const size_t here = std::min(left, kMaxFrameFds);
      EXPECT_EQ(SizesOf(**frame), std::vector<off_t>(here, 4));
      for (const uint32_t number : (*frame)->message.fd_index()) EXPECT_EQ(number, next++);
      left -= here;
      EXPECT_EQ((*frame)->message.has_abort(), left == 0);
      EXPECT_EQ((*frame)->message.has_descriptors(), left > 0);
    }
  }
}

// A socket with this option adds the sender's identity to each message, as control data next to the
// descriptors.
TEST(Frame, IgnoresOtherControlData) {
  Ends ends;
  const int on = 1;
  ASSERT_EQ(setsockopt(ends.b->fd(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
  const UniqueFd one = FileOf(1), two = FileOf(2);
  for (const int fd : {one.get(), two.get()})
    ASSERT_TRUE(ends.a->Send(Abort("x"), Passed({fd})).ok());
  for (const off_t want : {1, 2}) {
    auto frame = ends.b->Receive(kHangMs);
    ASSERT_TRUE(frame.ok() && frame->has_value());
    EXPECT_EQ(SizesOf(**frame), std::vector<off_t>{want});
  }
}

TEST(Frame, ReportsErrorWhenDescriptorsLost) {
  Ends ends;
  const UniqueFd file = FileOf(4);
  ASSERT_TRUE(ends.a->Send(Abort("x"), Passed({file.get()})).ok());
  // The limit is lifted before the expectations: a sanitizer opens files to inspect objects.
  const auto frame = [&] {
    const FileLimit limit(static_cast<rlim_t>(file.get()));
    return ends.b->Receive(kHangMs);
  }();
  EXPECT_EQ(frame.status().code(), Code::kInvalid);
  EXPECT_THAT(frame.status().message(), HasSubstr("descriptors were lost"));
}

TEST(Frame, ReportsErrorWhenPollFails) {
  Ends ends;
  // UBSan inspects a type at its first use through a pipe, for which the limit below leaves no
  // descriptor.
  EXPECT_FALSE(ends.b->Receive(0)->has_value());
  const auto frame = [&] {
    const FileLimit limit(0);
    return ends.b->Receive(kHangMs);
  }();
  EXPECT_EQ(frame.status().code(), Code::kInternal);
  EXPECT_THAT(frame.status().message(), HasSubstr("poll"));
}

TEST(Frame, ReportsClosedPeerToSenderAndReceiver) {
  {
    Ends ends;
    ends.b.reset();
    const Status sent = ends.a->Send(Abort("x"));
    EXPECT_EQ(sent.code(), Code::kUnavailable);
    EXPECT_THAT(sent.message(), HasSubstr("send: Broken pipe"));
    EXPECT_THAT(ends.a->Receive(kHangMs).status().message(), HasSubstr("closed the connection"));
  }
  // Unread data is lost with it.
  Ends ends;
  ASSERT_TRUE(ends.a->Send(Abort("unread")).ok());
  ends.b.reset();
  const auto frame = ends.a->Receive(kHangMs);
  EXPECT_EQ(frame.status().code(), Code::kUnavailable);
  EXPECT_THAT(frame.status().message(), HasSubstr("receive: Connection reset"));
}

TEST(Frame, ReceivesAfterEndSending) {
  Ends ends;
  ends.a->EndSending();
  EXPECT_EQ(ends.b->Receive(kHangMs).status().code(), Code::kUnavailable);
  ASSERT_TRUE(ends.b->Send(Abort("last")).ok());
  auto frame = ends.a->Receive(kHangMs);
  ASSERT_TRUE(frame.ok() && frame->has_value());
  EXPECT_EQ((*frame)->message.abort().reason(), "last");
}

TEST(Frame, EndsStreamAtSendTimeoutWithoutBusyWait) {
  FakeTime time;
  Ends ends(300ms, time);
  const Status sent = ends.a->Send(OfBytes(4 << 20));
  EXPECT_EQ(sent.code(), Code::kUnavailable);
  EXPECT_THAT(sent.message(), HasSubstr("did not receive the message within 300 ms"));
  EXPECT_EQ(time.Elapsed(), 300ms);
  EXPECT_EQ(time.polls(), 1U) << "it waits, it does not ask again and again";
  // Part of a message was sent.
  EXPECT_EQ(ends.b->Receive(kHangMs).status().code(), Code::kUnavailable);
}

TEST(Frame, DoesNotExtendTimeoutWhenBytesArriveSlowly) {
  FakeTime time;
  Ends ends(kHang, time);
  const std::string bytes = Framed(OfBytes(1000));
  size_t sent = 0;
  time.idle = [&] {
    if (sent == 300) return false;
    time.Advance(10ms);
    return write(ends.a->fd(), bytes.data() + sent++, 1) == 1;
  };
  const auto frame = ends.b->Receive(100);
  EXPECT_EQ(time.Elapsed(), 100ms) << "3 s if each byte started it anew";
  EXPECT_EQ(sent, 10U);
  ASSERT_TRUE(frame.ok());
  EXPECT_FALSE(frame->has_value());
}

TEST(Frame, WaitsWithoutTimeoutDespiteSignals) {
  struct sigaction quiet {};
  quiet.sa_handler = [](int) {};
  struct sigaction was {};
  ASSERT_EQ(sigaction(SIGUSR1, &quiet, &was), 0);
  Ends ends;
  Result<std::optional<Frame>> frame = std::optional<Frame>();
  std::thread receiver([&] { frame = ends.b->Receive(-1); });
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(10ms);
    pthread_kill(receiver.native_handle(), SIGUSR1);
  }
  EXPECT_TRUE(ends.a->Send(Abort("x")).ok());
  receiver.join();
  ASSERT_EQ(sigaction(SIGUSR1, &was, nullptr), 0);
  ASSERT_TRUE(frame.ok() && frame->has_value());
  EXPECT_EQ((*frame)->message.abort().reason(), "x");
}

// It is sent in many parts, of which only the first carries the descriptors.
TEST(Frame, SendsMessageAtLimitAndRejectsLarger) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  FrameChannel a{UniqueFd(ends[0]), 600s}, b{UniqueFd(ends[1])};
  const UniqueFd one = FileOf(1), two = FileOf(2);
  const v1::EngineMessage big = OfBytes(kMaxFrameBytes, 1);
  std::thread sender([&] {
    EXPECT_TRUE(a.Send(big, Passed({one.get()})).ok());
    EXPECT_TRUE(a.Send(Abort("after"), Passed({two.get()})).ok());
  });
  auto first = b.Receive(-1);
  auto second = b.Receive(-1);
  sender.join();
  ASSERT_TRUE(first.ok() && first->has_value() && second.ok() && second->has_value());
  EXPECT_EQ((*first)->message.abort().reason(), big.abort().reason());
  EXPECT_EQ(SizesOf(**first), std::vector<off_t>{1});
  EXPECT_EQ((*second)->message.abort().reason(), "after");
  EXPECT_EQ(SizesOf(**second), std::vector<off_t>{2});
  EXPECT_EQ(b.Send(OfBytes(kMaxFrameBytes + 1)).code(), Code::kInvalid);
}

}  // namespace
}  // namespace tangram
