// Agents after a failure, over real gRPC and sockets: outcomes of a fence, repairs, released
// members, drivers that disconnect.
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <thread>

#include "agent/base/fault.h"
#include "agent/server/testing/world.h"

namespace tangram::testing {
namespace {

grpc::StatusCode Resolve(const World& world, size_t i, const v1::Header& header,
                         v1::Outcome outcome, const std::string& lost = {}) {
  grpc::ClientContext context;
  v1::ResolveRequest request;
  *request.mutable_header() = header;
  request.set_outcome(outcome);
  request.set_reason("a test");
  if (!lost.empty()) request.add_lost(lost);
  v1::ResolveResponse response;
  return world.Driver(i)->Resolve(&context, request, &response).error_code();
}

grpc::StatusCode Release(const World& world, size_t i, const v1::Header& header,
                         const std::string& member) {
  grpc::ClientContext context;
  v1::ReleaseRequest request;
  *request.mutable_header() = header;
  if (!member.empty()) request.add_members(member);
  request.set_world_ends(member.empty());
  request.set_reason("a test");
  v1::ReleaseResponse response;
  return world.Driver(i)->Release(&context, request, &response).error_code();
}

void Retire(const World& world, size_t i, const v1::Header& header) {
  grpc::Status status;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::RetireRequest request;
    *request.mutable_header() = header;
    v1::RetireResponse response;
    status = world.Driver(i)->Retire(&context, request, &response);
    return status.ok();
  })) << status.error_message();
}

void Permit(const World& world, size_t i, const v1::Header& header) {
  grpc::ClientContext context;
  v1::PermitRequest request;
  *request.mutable_header() = header;
  v1::PermitResponse response;
  const auto status = world.Driver(i)->Permit(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

bool WaitStopped(const World& world) {
  return Eventually([&] {
    for (size_t i = 0; i < world.size(); ++i) {
      const v1::StatusResponse status = world.StatusOf(i);
      for (const auto& rank : status.ranks()) {
        if (!rank.engine().stopped()) return false;
      }
    }
    return true;
  });
}

bool WaitSteps(const World& world) {
  return Eventually([&] {
    for (size_t i = 0; i < world.size(); ++i) {
      const v1::StatusResponse status = world.StatusOf(i);
      for (const auto& rank : status.ranks()) {
        if (rank.engine().steps() == 0 || rank.engine().stopped()) return false;
      }
    }
    return true;
  });
}

// A world of two agents at rest in epoch 1.
class RepairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(world_.Take(v1::FLIP_KIND_FIRST, 1, At(1)));
    for (size_t i = 0; i < 2; ++i) Retire(world_, i, World::HeaderOf(0, 1));
  }
  v1::Layout At(uint64_t epoch, bool tensor = false) const {
    return ExpertLayout(world_.members(), epoch, tensor);
  }
  // Prepared and staged by both; permitted by `permits` of them.
  void Begin(uint64_t attempt, const v1::Layout& target, size_t permits) {
    const v1::Header header = World::HeaderOf(target.epoch() - 1, attempt);
    ASSERT_TRUE(world_.PrepareAll(v1::FLIP_KIND_LAYOUT, attempt, target));
    ASSERT_TRUE(world_.StageAll(header));
    for (size_t i = 0; i < permits; ++i) Permit(world_, i, header);
  }
  void RepairTo(uint64_t attempt, const v1::Layout& target) {
    ASSERT_TRUE(world_.Take(v1::FLIP_KIND_REPAIR, attempt, target));
    EXPECT_TRUE(WaitSteps(world_));
    for (size_t i = 0; i < 2; ++i) Retire(world_, i, World::HeaderOf(target.epoch() - 1, attempt));
    EXPECT_EQ(engines_.wrong_granules(), 0);
  }

  World world_{{1, 1}};
  Engines engines_{world_};
};

TEST_F(RepairTest, RepairsAbandonedStepInSameLayout) {
  engines_.break_step = true;
  ASSERT_TRUE(WaitStopped(world_));
  RepairTo(2, At(2));
}

TEST_F(RepairTest, RejectsRepairOfSteppingRank) {
  grpc::ClientContext context;
  v1::PrepareResponse response;
  const auto status = world_.Driver(0)->Prepare(
      &context, world_.Request(0, v1::FLIP_KIND_REPAIR, 2, At(2)), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("has not stopped"), std::string::npos);
}

TEST_F(RepairTest, AbortsKeptVoteByFence) {
  engines_.mute = true;
  Begin(2, At(2, true), 2);
  const v1::Header header = World::HeaderOf(1, 2);
  EXPECT_EQ(Resolve(world_, 0, header, v1::OUTCOME_ABORT), grpc::StatusCode::FAILED_PRECONDITION)
      << "nobody stands still";
  engines_.keep_vote = true;
  engines_.break_step = true;  // last: it takes effect immediately
  ASSERT_TRUE(WaitStopped(world_));
  for (int twice = 0; twice < 2; ++twice) {
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(Resolve(world_, i, header, v1::OUTCOME_ABORT), grpc::StatusCode::OK);
    }
  }
  EXPECT_EQ(Resolve(world_, 1, header, v1::OUTCOME_ROLL_FORWARD),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(world_.StatusOf(0).epoch(), 1u);
  engines_.mute = false;
  RepairTo(3, At(2));
}

TEST_F(RepairTest, RollsForwardAllWhenOneFlipped) {
  engines_.mute = true;
  Begin(2, At(2, true), 2);
  engines_.one_commits = engines_.keep_vote = true;
  engines_.break_step = true;  // last: it takes effect immediately
  ASSERT_TRUE(WaitStopped(world_));
  EXPECT_EQ(world_.StatusOf(0).epoch(), 2u);
  EXPECT_EQ(world_.StatusOf(1).epoch(), 1u);
  const v1::Header header = World::HeaderOf(1, 2);
  EXPECT_EQ(Resolve(world_, 0, header, v1::OUTCOME_ABORT), grpc::StatusCode::FAILED_PRECONDITION)
      << "a flip is a fact";
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Resolve(world_, i, header, v1::OUTCOME_ROLL_FORWARD), grpc::StatusCode::OK);
  }
  EXPECT_EQ(world_.StatusOf(1).epoch(), 2u);
  engines_.mute = false;
  // Not retired: the old places are sources.
  RepairTo(3, At(3, true));
}

TEST_F(RepairTest, IgnoresVotesWhenRepairHeld) {
  engines_.break_step = true;
  ASSERT_TRUE(WaitStopped(world_));
  const v1::Header header = World::HeaderOf(1, 2);
  ASSERT_TRUE(world_.PrepareAll(v1::FLIP_KIND_REPAIR, 2, At(2)));
  ASSERT_TRUE(world_.StageAll(header));
  EXPECT_EQ(Resolve(world_, 0, header, v1::OUTCOME_HOLD), grpc::StatusCode::OK);
  for (size_t i = 0; i < 2; ++i) Permit(world_, i, header);
  // The other agent is not held and has both votes, so it flips alone.
  EXPECT_TRUE(Eventually([&] { return world_.StatusOf(1).epoch() == 2; }));
  const auto held = world_.StatusOf(0);
  EXPECT_EQ(held.epoch(), 1u);
  EXPECT_TRUE(held.ranks(0).transition().held());
  EXPECT_EQ(Resolve(world_, 0, header, v1::OUTCOME_ROLL_FORWARD), grpc::StatusCode::OK);
  EXPECT_EQ(world_.StatusOf(0).epoch(), 2u);
}

TEST_F(RepairTest, IncludesReattachedEngineInRepair) {
  engines_.Leave(1);
  ASSERT_TRUE(Eventually([&] { return world_.StatusOf(1).ranks(0).engine().stopped(); }));
  EXPECT_FALSE(world_.StatusOf(1).ranks(0).engine().attached());
  engines_.Replace(world_, 1);
  const auto engine = world_.StatusOf(1).ranks(0).engine();
  EXPECT_TRUE(engine.stopped() && engine.attached_after_flip() && engine.attached());
  engines_.break_step = true;
  ASSERT_TRUE(WaitStopped(world_));
  RepairTo(2, At(2));
  EXPECT_FALSE(world_.StatusOf(1).ranks(0).engine().attached_after_flip());
}

TEST_F(RepairTest, LearnsPermitFromPeerWithoutDriver) {
  Begin(2, At(2, true), 1);
  EXPECT_TRUE(world_.WaitEpoch(2)) << "the other asks its peer";
  EXPECT_EQ(engines_.wrong_granules(), 0);
}

// An engine is unresponsive while a repair is prepared. Its driver disconnects, which ends the
// call. The next repair is not affected.
TEST_F(RepairTest, EndsCallWhenDriverDisconnects) {
  engines_.break_step = true;
  ASSERT_TRUE(WaitStopped(world_));
  engines_.unprepared = true;
  const auto prepare = [&](uint64_t attempt, grpc::ClientContext* context) {
    v1::PrepareResponse response;
    return world_.Driver(0)
        ->Prepare(context, world_.Request(0, v1::FLIP_KIND_REPAIR, attempt, At(2)), &response)
        .error_code();
  };
  const int before = engines_.prepares();
  grpc::ClientContext left, again;
  auto call = std::async(std::launch::async, [&] { return prepare(2, &left); });
  EXPECT_TRUE(Eventually([&] { return engines_.prepares() > before; })) << "the engine is asked";
  left.TryCancel();
  EXPECT_EQ(call.get(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(Eventually([&] { return engines_.aborts() == 1; })) << "the engine is told";
  engines_.unprepared = false;
  EXPECT_EQ(prepare(3, &again), grpc::StatusCode::OK);
}

// A vote is out, and an agent without it cannot decide. Before the abort times out (an hour here),
// its driver may learn that a member died. The driver's fence does not wait for the cancelled
// abort.
TEST_F(RepairTest, DoesNotDelayFenceAfterCancelledAbort) {
  engines_.break_step = true;
  ASSERT_TRUE(WaitStopped(world_));
  ASSERT_TRUE(world_.PrepareAll(v1::FLIP_KIND_REPAIR, 2, At(2)));
  const v1::Header header = World::HeaderOf(1, 2);
  {
    grpc::ClientContext context;
    v1::StageRequest stage;
    *stage.mutable_header() = header;
    v1::StageResponse staged;
    ASSERT_TRUE(world_.Driver(0)->Stage(&context, stage, &staged).ok());
  }
  ASSERT_TRUE(Eventually(
      [&] { return world_.StatusOf(0).ranks(0).transition().phase() == v1::PHASE_STAGED; }));
  Permit(world_, 0, header);
  grpc::ClientContext abort_context, retire_context;
  v1::AbortRequest abort;
  *abort.mutable_header() = header;
  v1::AbortResponse aborted;
  const std::string points = world_.dir() + "/points";
  std::filesystem::create_directory(points);
  fault::Follow(points);
  auto call = std::async(std::launch::async,
                         [&] { return world_.Driver(0)->Abort(&abort_context, abort, &aborted); });
  EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(points + "/abort.before.seen"); }));
  fault::Follow("");
  abort_context.TryCancel();
  const grpc::Status open = call.get();
  EXPECT_EQ(open.error_code(), grpc::StatusCode::CANCELLED) << open.error_message();
  retire_context.set_deadline(std::chrono::system_clock::now() + kHang);
  v1::RetireRequest retire;
  *retire.mutable_header() = header;
  v1::RetireResponse retired;
  const grpc::Status next = world_.Driver(0)->Retire(&retire_context, retire, &retired);
  EXPECT_EQ(next.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << next.error_message();
}

TEST_F(RepairTest, ReleasesRemovedMemberAndReplacesItsId) {
  engines_.break_step = true;
  ASSERT_TRUE(WaitStopped(world_));
  const std::vector<v1::Member> members = world_.members();
  const v1::Layout alone = ExpertLayout({members[0]}, 2, false);
  const v1::PrepareRequest prepare = [&] {
    v1::PrepareRequest request = world_.Request(0, v1::FLIP_KIND_REPAIR, 2, alone);
    request.mutable_peers()->DeleteSubrange(1, 1);
    return request;
  }();
  grpc::ClientContext context, staging;
  v1::PrepareResponse prepared;
  auto status = world_.Driver(0)->Prepare(&context, prepare, &prepared);
  ASSERT_TRUE(status.ok()) << status.error_message();
  v1::StageRequest stage;
  *stage.mutable_header() = World::HeaderOf(1, 2);
  v1::StageResponse staged;
  ASSERT_TRUE(world_.Driver(0)->Stage(&staging, stage, &staged).ok());
  ASSERT_TRUE(Eventually(
      [&] { return world_.StatusOf(0).ranks(0).transition().phase() == v1::PHASE_STAGED; }));
  Permit(world_, 0, World::HeaderOf(1, 2));
  ASSERT_TRUE(Eventually([&] { return world_.StatusOf(0).epoch() == 2; }));

  EXPECT_EQ(Release(world_, 1, World::HeaderOf(1, 2), members[1].id()),
            grpc::StatusCode::FAILED_PRECONDITION)
      << "it is a member of epoch 1";
  EXPECT_EQ(Release(world_, 1, World::HeaderOf(2, 2), members[1].id()), grpc::StatusCode::OK);
  const v1::RankStatus rank = world_.StatusOf(1).ranks(0);
  EXPECT_EQ(rank.member().id(), "uid-1/0/2");
  EXPECT_FALSE(rank.in_world());
  EXPECT_EQ(rank.memory_free(), rank.memory_bytes());
  EXPECT_TRUE(Eventually([&] { return engines_.last_poll(1) == TG_REFUSED; }));
  EXPECT_EQ(Release(world_, 1, World::HeaderOf(2, 2), members[1].id()), grpc::StatusCode::OK)
      << "repeated";
}

// An unresponsive engine cannot stop itself: the fence marks it as stopped, also during an attempt.
TEST_F(RepairTest, StopsEngineOfFencedMember) {
  engines_.mute = true;
  Begin(2, At(2, true), 2);
  const v1::Header header = World::HeaderOf(1, 2);
  EXPECT_EQ(Resolve(world_, 1, header, v1::OUTCOME_ABORT), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_FALSE(world_.StatusOf(1).ranks(0).engine().stopped());
  const std::string lost = world_.members()[1].id();
  EXPECT_EQ(Resolve(world_, 1, header, v1::OUTCOME_ABORT, lost), grpc::StatusCode::OK);
  EXPECT_TRUE(world_.StatusOf(1).ranks(0).engine().stopped());
  EXPECT_EQ(world_.StatusOf(1).ranks(0).transition().phase(), v1::PHASE_IDLE);
}

// A driver that plans a repair sees which engines are responsive, although all are stopped.
TEST_F(RepairTest, CountsPollsOfResponsiveEngine) {
  const auto polls = [&](size_t i) { return world_.StatusOf(i).ranks(0).engine().polls(); };
  const uint64_t before = polls(0);
  EXPECT_TRUE(Eventually([&] { return polls(0) > before; }));
}

// The engine may continue at any time, with the rank's memory still mapped. Until its process has
// ended, no other engine gets that memory, and its control page shows that it is stopped.
TEST_F(RepairTest, RejectsAttachWhileEvictedEngineLives) {
  engines_.mute = true;
  EXPECT_EQ(Release(world_, 1, World::HeaderOf(2, 2), world_.members()[1].id()),
            grpc::StatusCode::OK);
  EXPECT_TRUE(world_.StatusOf(1).ranks(0).engine().stopped());
  EXPECT_FALSE(world_.StatusOf(1).ranks(0).engine().attached());
  const std::string path = world_.socket(1), token = world_.token(1);
  const tg_options options = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  tg_client* another = nullptr;
  tg_error error = TG_INIT(tg_error);
  EXPECT_NE(tg_attach(&options, &another, &error), TG_OK);
  EXPECT_NE(std::string(error.message).find("the evicted engine"), std::string::npos)
      << error.message;
  engines_.Leave(1);
  ASSERT_TRUE(Eventually([&] { return tg_attach(&options, &another, &error) == TG_OK; }))
      << error.message;
  EXPECT_FALSE(world_.StatusOf(1).ranks(0).engine().stopped());
  tg_detach(another);
}

// An engine that is evicted during its admission never maps anything: the place is free.
TEST_F(RepairTest, FreesPlaceOfEngineEvictedDuringAttach) {
  engines_.Leave(1);
  ASSERT_TRUE(Eventually([&] { return !world_.StatusOf(1).ranks(0).engine().attached(); }));
  const std::string path = world_.socket(1), token = world_.token(1);
  const tg_options options = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  ASSERT_TRUE(fault::Arm("engine.attach=delay:500").ok());
  std::thread first([&] {
    tg_client* client = nullptr;
    tg_error error = TG_INIT(tg_error);
    // If the release is late on a slow machine, it is admitted before, and detaches by itself.
    if (tg_attach(&options, &client, &error) == TG_OK) tg_detach(client);
  });
  ASSERT_TRUE(Eventually([&] { return world_.StatusOf(1).ranks(0).engine().attached(); }));
  EXPECT_EQ(Release(world_, 1, World::HeaderOf(2, 2), world_.members()[1].id()),
            grpc::StatusCode::OK);
  first.join();
  ASSERT_TRUE(fault::Arm("").ok());
  tg_client* another = nullptr;
  tg_error error = TG_INIT(tg_error);
  ASSERT_TRUE(Eventually([&] { return tg_attach(&options, &another, &error) == TG_OK; }))
      << error.message;
  tg_detach(another);
}

TEST_F(RepairTest, FreesAllMemoryWhenWorldEndsDuringAttempt) {
  engines_.mute = true;
  Begin(2, At(2, true), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Release(world_, i, World::HeaderOf(1, 0), ""), grpc::StatusCode::OK);
    const v1::RankStatus rank = world_.StatusOf(i).ranks(0);
    EXPECT_EQ(rank.memory_free(), rank.memory_bytes());
    EXPECT_FALSE(rank.in_world());
  }
}

}  // namespace
}  // namespace tangram::testing
