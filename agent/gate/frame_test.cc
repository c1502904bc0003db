#include "agent/gate/frame.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <random>
#include <thread>

namespace tangram {
namespace {

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

TEST(Frame, AnyCutOfTheStreamGivesTheSameMessages) {
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

TEST(Frame, GarbageIsRefusedAndStaysRefused) {
  const std::string huge("\xff\xff\xff\x7f", 4);
  const std::string empty_body("\0\0\0\0", 4);
  const std::string not_proto = std::string("\x03\0\0\0", 4) + "\xff\xff\xff";
  v1::EngineMessage lying = Abort("x");
  lying.set_fd_count(2);
  for (const std::string& bytes : {huge, empty_body, not_proto, Framed(lying)}) {
    FrameDecoder decoder;
    decoder.Feed(bytes);
    EXPECT_EQ(decoder.Next().status().code(), Code::kInvalid);
    decoder.Feed(Framed(Abort("later")));
    EXPECT_EQ(decoder.Next().status().code(), Code::kInvalid) << "the stream has no frames left";
  }
}

TEST(Frame, DescriptorsComeWithTheirMessage) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  FrameChannel a{UniqueFd(ends[0])}, b{UniqueFd(ends[1])};
  UniqueFd memory(memfd_create("t", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 12345), 0);
  ASSERT_TRUE(a.Send(Abort("first")).ok());
  ASSERT_TRUE(a.Send(Abort("second"), std::vector{memory.get(), memory.get()}).ok());
  ASSERT_TRUE(a.Send(Abort("third")).ok());
  for (const size_t fds : {0, 2, 0}) {
    auto frame = b.Receive(1000);
    ASSERT_TRUE(frame.ok() && frame->has_value());
    EXPECT_EQ((*frame)->fds.size(), fds);
    for (const UniqueFd& fd : (*frame)->fds) EXPECT_EQ(lseek(fd.get(), 0, SEEK_END), 12345);
  }
  auto none = b.Receive(0);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  a.Shutdown();
  EXPECT_EQ(b.Receive(1000).status().code(), Code::kUnavailable);
}

TEST(Frame, BigMessagesPassBothWaysAtOnce) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  FrameChannel a{UniqueFd(ends[0])}, b{UniqueFd(ends[1])};
  const std::string big(8 << 20, 'z');
  std::thread sender([&] { EXPECT_TRUE(a.Send(Abort(big)).ok()); });
  auto frame = b.Receive(10'000);
  sender.join();
  ASSERT_TRUE(frame.ok() && frame->has_value());
  EXPECT_EQ((*frame)->message.abort().reason(), big);
  EXPECT_EQ(b.Send(Abort(std::string(kMaxFrameBytes, 'z'))).code(), Code::kInvalid);
}

}  // namespace
}  // namespace tangram
