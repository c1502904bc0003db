// Members that join and leave, and the checks of their hellos.
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>

#include "agent/base/testing/hang.h"
#include "agent/dispatch/testing/world.h"
#include "agent/net/testing/certs.h"

namespace tangram::dispatch {
namespace {

using namespace testing;

constexpr uint32_t kGranules = 2;

Format SoakFormat() {
  return {.hidden = 9,
          .top_k = 2,
          .experts = 5,
          .x = Element::kF32,
          .wire = Element::kF32,
          .sums = Element::kFixed,
          .most_tokens = 16};
}

Layout DrawnLayout(uint32_t ranks, std::mt19937& draw) {
  Layout layout(ranks, 5);
  std::vector<Placed> experts(5);
  for (Placed& expert : experts)
    for (uint32_t a = 0; a <= draw() % 2; ++a) {
      if (draw() % 2 == 0)
        expert.push_back({{static_cast<uint32_t>(draw() % ranks), 0, kGranules}});
      else
        expert.push_back({{static_cast<uint32_t>(draw() % ranks), 0, 1},
                          {static_cast<uint32_t>(draw() % ranks), 1, 1}});
    }
  layout.AddLayer(experts);
  return layout;
}

// 1,000 steps, nightly 100,000: members join, leave, and die at any place of a step; those that
// stay keep their links. Complete steps are exact; for a broken one the missing contributions are
// reported.
TEST(Members, JoinLeaveAndDieForThousandSteps) {
  const char* tier = std::getenv("TIER");
  const bool night = tier != nullptr && std::string_view(tier) == "nightly";
  const int steps = night ? 100'000 : 1'000;
  const Format format = SoakFormat();
  BufferOptions options{.format = format, .geometry = {}, .exchange = {}};
  options.exchange.timeout = std::chrono::seconds(20);
  std::mt19937 draw(3);
  SocketFolder folder;
  std::vector<std::unique_ptr<Buffer>> world;
  uint64_t epoch = 0, born = 0;
  int joined = 0, left = 0, died = 0, lacked = 0;
  const auto join = [&] {
    const Path path = draw() % 3 == 0 ? Path::kTcp : Path::kSharedMemory;
    ++born;
    Member member = MemberOf(folder, path, "m" + std::to_string(born % 7), born);
    if (path == Path::kSharedMemory) member.endpoint = "127.0.0.1:0";
    world.push_back(
        std::move(Buffer::Create(member, options, net::Credentials::Insecure())).value());
  };
  const auto enter = [&] {
    ++epoch;
    Meet(world);
    Layout layout = DrawnLayout(static_cast<uint32_t>(world.size()), draw);
    for (uint32_t r = 0; r < world.size(); ++r)
      ASSERT_TRUE(world[r]->UpdateMembers(epoch, IdsOf(world), RoutesOf(layout, r)).ok());
  };
  join();
  join();
  enter();
  for (int step = 0; step < steps; ++step) {
    const uint32_t event = draw() % 40;
    if (event == 0 && world.size() < 5) {
      join();
      enter();
      ++joined;
    } else if (event == 1 && world.size() > 2) {
      const MemberId gone = world[draw() % world.size()]->self().id;
      std::erase_if(world, [&](const auto& b) { return b->self().id == gone; });
      enter();
      for (auto& buffer : world) buffer->Ended(gone);
      ++left;
    }
    const bool dies = event == 2 && world.size() > 2;
    const uint32_t victim = dies ? draw() % world.size() : 99;
    const uint32_t where = draw() % 3;
    std::vector<Own> own;
    for (size_t r = 0; r < world.size(); ++r)
      own.push_back(DrawnRows(format, draw() % 5 == 0 ? 0 : draw() % 17, draw));
    std::vector<uint8_t> whole(world.size(), 1);
    OnEach(world.size(), [&](uint32_t r) {
      std::unique_ptr<Buffer>& buffer = world[r];
      const auto dead = [&](uint32_t at) {
        if (r != victim || where != at) return false;
        buffer.reset();
        return true;
      };
      if (dead(0)) return;
      Exchange& exchange = buffer->exchange();
      const auto sent = exchange.Send(0, own[r].rows(Element::kF32));
      ASSERT_TRUE(sent.ok()) << sent.status().message();
      if (dead(1)) return;
      ASSERT_TRUE(exchange.Receive(*sent).ok());
      if (dead(2)) return;
      void* const outputs = exchange.NextCombineBuffer(*sent);
      Compute(exchange, exchange.routes()->Layer(0), *sent, outputs);
      std::vector<int64_t> y(own[r].x.size() + 1);
      const Status back = buffer->Combine(*sent, outputs, y.data());
      ASSERT_TRUE(back.ok()) << back.message();
      whole[r] = exchange.report().whole() && exchange.report().masked.empty();
      if (exchange.report().whole())
        ASSERT_EQ(Doubles(format, y.data(), own[r].x.size()), Serial(format, kGranules, own[r]))
            << "step " << step << " rank " << r;
    });
    if (HasFailure()) return;
    const bool all = std::find(whole.begin(), whole.end(), 0) == whole.end();
    ASSERT_TRUE(all || dies) << "step " << step << ": somebody lacks something, and nobody died";
    if (!dies) continue;
    ++died;
    lacked += all ? 0 : 1;
    std::erase_if(world, [](const auto& b) { return b == nullptr; });
    enter();
  }
  EXPECT_GT(joined, steps / 200);
  EXPECT_GT(left, steps / 200);
  EXPECT_GT(died, steps / 200);
  EXPECT_GT(lacked, died / 2) << "a death that costs nobody anything";
}

TEST(Members, KeepLinksButDropOpenPairsAtNextEpoch) {
  SocketFolder folder;
  const BufferOptions options{.format = SoakFormat(), .geometry = {}, .exchange = {}};
  std::vector<std::unique_ptr<Buffer>> world;
  for (int i = 0; i < 3; ++i)
    world.push_back(
        std::move(Buffer::Create(MemberOf(folder, Path::kSharedMemory,
                                          std::string(1, static_cast<char>('a' + i)), 1),
                                 options, net::Credentials::Insecure()))
            .value());
  std::mt19937 draw(1);
  Layout two = DrawnLayout(2, draw), three = DrawnLayout(3, draw);
  std::vector<Member> first{world[0]->self(), world[1]->self()};
  OnEach(2,
         [&](uint32_t r) { ASSERT_TRUE(world[r]->Prepare(first, std::chrono::seconds(20)).ok()); });
  const std::vector<MemberId> ids{{"a", 1}, {"b", 1}}, all{{"c", 1}, {"a", 1}, {"b", 1}};
  for (uint32_t r = 0; r < 2; ++r)
    ASSERT_TRUE(world[r]->UpdateMembers(1, ids, RoutesOf(two, r)).ok());
  Link* const before = world[0]->peers().at(1);
  // A pair is open when the next epoch begins; its data in the rings is dropped there.
  const Own own = DrawnRows(SoakFormat(), 8, draw);
  const auto open = world[0]->exchange().Send(0, own.rows(Element::kF32));
  ASSERT_TRUE(open.ok());
  EXPECT_EQ(world[0]->UpdateMembers(2, all, RoutesOf(three, 1)).code(), Code::kUnavailable)
      << "nobody prepared c";
  Meet(world);
  const uint32_t rank_of[] = {1, 2, 0};
  for (uint32_t i = 0; i < 3; ++i)
    ASSERT_TRUE(world[i]->UpdateMembers(3, all, RoutesOf(three, rank_of[i])).ok());
  EXPECT_EQ(world[0]->peers().at(2), before) << "of those that stay nothing is built anew";
  EXPECT_EQ(world[0]->exchange().Receive(*open).code(), Code::kInvalid);
  OnEach(3, [&](uint32_t i) {
    const auto handle = world[i]->Dispatch(0, own.rows(Element::kF32));
    ASSERT_TRUE(handle.ok());
    void* const outputs = world[i]->exchange().NextCombineBuffer(*handle);
    Compute(world[i]->exchange(), world[i]->exchange().routes()->Layer(0), *handle, outputs);
    std::vector<int64_t> y(own.x.size());
    ASSERT_TRUE(world[i]->Combine(*handle, outputs, y.data()).ok());
    EXPECT_TRUE(world[i]->exchange().report().whole());
    EXPECT_EQ(Doubles(SoakFormat(), y.data(), y.size()), Serial(SoakFormat(), kGranules, own));
  });
}

TEST(Members, AreRejectedWhenPodOrFormatDiffers) {
  const net::testing::TestCa ca;
  SocketFolder folder;
  const BufferOptions options{.format = SoakFormat(), .geometry = {}, .exchange = {}};
  BufferOptions other = options;
  other.format.hidden = 10;
  const auto make = [&](const char* name, const char* pod, const BufferOptions& with) {
    return std::move(Buffer::Create(MemberOf(folder, Path::kTcp, name, 1), with,
                                    ca.Open("w", "engine", pod)))
        .value();
  };
  auto a = make("a", "pod-a", options), b = make("b", "pod-b", options),
       thief = make("b", "pod-x", options), odd = make("b", "pod-b", other);
  const auto meets = [&](Buffer& with, std::chrono::milliseconds limit) {
    Member mine = a->self(), theirs = with.self();
    mine.pod = "pod-a";
    theirs.pod = "pod-b";
    const std::vector<Member> members{mine, theirs};
    std::string out;
    std::mutex mutex;
    OnEach(2, [&](uint32_t i) {
      const Status met = (i == 0 ? *a : with).Prepare(members, limit);
      const std::lock_guard lock(mutex);
      out += met.message();
    });
    return out;
  };
  // A rejection needs a reply, which a busy machine may send late.
  const auto refused = [&](Buffer& with, const std::string& words) {
    std::string said;
    for (auto limit = std::chrono::milliseconds(400); limit < tangram::testing::kHang; limit *= 2) {
      said = meets(with, limit);
      if (said.find(words) != std::string::npos) break;
    }
    EXPECT_THAT(said, ::testing::HasSubstr(words));
  };
  refused(*thief, "pod pod-x speaks for b/1");
  refused(*odd, "rows or slots of another kind");
  EXPECT_EQ(meets(*b, tangram::testing::kHang), "");
}

}  // namespace
}  // namespace tangram::dispatch
