// The whole protocol: a driver over gRPC with mTLS, agents, and engines over the C ABI.
#include "agent/server/testing/world.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/base/fault.h"
#include "agent/net/address.h"
#include "agent/net/blocking.h"
#include "agent/server/refusal.h"

namespace tangram::testing {
namespace {

v1::Refusal RefusalOf(const grpc::ClientContext& context) {
  v1::Refusal out;
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find(kRefusalKey);
  if (it != trailers.end()) {
    out.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()));
  }
  return out;
}

// Rejection of one Prepare on agent 0.
v1::Refusal PrepareRefusal(const World& world, const v1::PrepareRequest& request,
                           grpc::StatusCode code = grpc::StatusCode::FAILED_PRECONDITION) {
  grpc::ClientContext context;
  v1::PrepareResponse response;
  const grpc::Status status = world.Driver(0)->Prepare(&context, request, &response);
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  return RefusalOf(context);
}

grpc::Status AbortOn(const World& world, size_t i, const v1::Header& header, bool* flipped) {
  grpc::ClientContext context;
  v1::AbortRequest request;
  *request.mutable_header() = header;
  request.set_reason("test");
  v1::AbortResponse response;
  const grpc::Status status = world.Driver(i)->Abort(&context, request, &response);
  *flipped = response.flipped();
  return status;
}

grpc::Status RetireOn(const World& world, size_t i, const v1::Header& header) {
  grpc::ClientContext context;
  v1::RetireRequest request;
  *request.mutable_header() = header;
  v1::RetireResponse response;
  return world.Driver(i)->Retire(&context, request, &response);
}

bool RetireAll(const World& world, const v1::Header& header) {
  for (size_t i = 0; i < world.size(); ++i) {
    grpc::Status status;
    const bool retired = Eventually([&] {
      status = RetireOn(world, i, header);
      return status.ok();
    });
    EXPECT_TRUE(retired) << status.error_message();
    if (!retired) return false;
  }
  return true;
}

// Before the permit, and counted separately from KV moved in the flip.
TEST(World, PullsKvAheadOfFlipDuringSteps) {
  World world({2, 1});
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(0, 1)));
  engines.ahead = true;
  ASSERT_TRUE(world.PrepareAll(v1::FLIP_KIND_LAYOUT, 2, ExpertLayout(world.members(), 2, true)));
  EXPECT_TRUE(Eventually([&] { return engines.ahead_bytes() >= 3 * 32; }));
  EXPECT_EQ(engines.ahead_bytes(), 3 * 32u);
  const v1::TransitionStatus prepared = world.StatusOf(0).ranks(0).transition();
  EXPECT_EQ(prepared.phase(), v1::PHASE_PREPARED);
  EXPECT_EQ(prepared.kv_bytes(), 32u);
  EXPECT_EQ(prepared.kv_ahead_bytes(), 32u);
  ASSERT_TRUE(world.StageAll(World::HeaderOf(1, 2)));
  for (size_t i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::PermitRequest request;
    *request.mutable_header() = World::HeaderOf(1, 2);
    v1::PermitResponse response;
    ASSERT_TRUE(world.Driver(i)->Permit(&context, request, &response).ok());
  }
  ASSERT_TRUE(world.WaitEpoch(2));
  const v1::TransitionStatus flipped = world.StatusOf(0).ranks(0).transition();
  EXPECT_EQ(flipped.kv_bytes(), 32u + 64u);
  EXPECT_EQ(flipped.kv_ahead_bytes(), 32u);
  EXPECT_EQ(engines.wrong_granules(), 0);
}

// An unresponsive source blocks a pull. The agent still notices that its engine ended, and stops
// the pull before it writes into memory that the next engine gets.
TEST(World, StopsKvPullWhenEngineDetaches) {
  std::atomic<int> pulling{0}, stopped{0};  // they outlive the world, in which pulls run
  std::atomic<bool> over{false};
  World world({1, 1});
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(0, 1)));
  SetBeforeKvPull([&](const std::stop_token& stop) {
    ++pulling;
    while (!stop.stop_requested() && !over)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (stop.stop_requested()) ++stopped;
  });
  engines.ahead = true;
  EXPECT_TRUE(world.PrepareAll(v1::FLIP_KIND_LAYOUT, 2, ExpertLayout(world.members(), 2, true)));
  EXPECT_TRUE(Eventually([&] { return pulling == 2; }));
  engines.Leave(0);
  EXPECT_TRUE(Eventually([&] { return !world.StatusOf(0).ranks(0).engine().attached(); }));
  EXPECT_EQ(stopped, 1) << "that of the engine that ended, and no other";
  over = true;
  SetBeforeKvPull(nullptr);
}

TEST(World, FlipsFirstAndLaterLayoutsWithRunningEngines) {
  World world({2, 1});
  Engines engines(world);
  const auto first = ExpertLayout(world.members(), 1, false);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, first));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(0, 1)));
  EXPECT_EQ(engines.prepares(), 3);
  const auto free_before = world.StatusOf(0).ranks(0).memory_free();

  const auto second = ExpertLayout(world.members(), 2, true);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_LAYOUT, 2, second));
  const auto flipped = world.StatusOf(0);
  EXPECT_EQ(flipped.layout_hash(), layout::HashOf(second));
  EXPECT_EQ(flipped.ranks(0).memory_free() + flipped.ranks(0).memory_mapped(),
            flipped.ranks(0).memory_bytes());
  EXPECT_GT(flipped.ranks(0).transition().bytes_checkpoint(), 0u);
  EXPECT_EQ(flipped.ranks(0).transition().kv_bytes(), 64u);
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(2, 2)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(2, 2))) << "Retire may be repeated";
  const auto after = world.StatusOf(0).ranks(0);
  EXPECT_EQ(after.transition().phase(), v1::PHASE_IDLE);
  EXPECT_EQ(after.transition().attempt(), 2u) << "the record stays until the next Prepare";

  ASSERT_TRUE(world.Take(v1::FLIP_KIND_LAYOUT, 3, ExpertLayout(world.members(), 3, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(3, 3)));
  EXPECT_EQ(world.StatusOf(0).ranks(0).memory_free(), free_before) << "pages leaked";
  EXPECT_EQ(engines.wrong_granules(), 0);
  EXPECT_GT(engines.checked_granules(), 200);
  EXPECT_EQ(engines.kv_bytes(), 2u * 3 * 64);
  const v1::ExpertLoadResponse load = world.agent(0).executor()->GetLoad();
  ASSERT_EQ(load.ranks(0).tokens_size(), load.ranks(0).executed_size());
  EXPECT_GT(load.ranks(0).tokens(1 * 7 + 2), 0u);
  EXPECT_EQ(load.ranks(0).tokens(1 * 7 + 3), 0u);
  EXPECT_GT(load.ranks(0).executed(1 * 7 + 3), 0u);
  EXPECT_EQ(load.ranks(0).executed(1 * 7 + 2), 0u);
  ASSERT_EQ(load.ranks_size(), 2);
  EXPECT_EQ(load.ranks(1).member(), world.StatusOf(0).ranks(1).member().id());
  ASSERT_EQ(load.ranks(1).tokens_size(), 3 * 7);
  EXPECT_GT(load.ranks(1).tokens(1 * 7 + 2), 0u);

  std::map<std::string, double> seen;  // "name{first label value}" of Prometheus metrics
  for (const auto& family :
       AgentMetrics(world.agent(0).executor(), world.dir() + "/pod-0.crt").Collect()) {
    for (const auto& metric : family.metric) {
      seen[family.name + (metric.label.empty() ? "" : metric.label.back().value)] =
          metric.gauge.value;
      if (family.name.starts_with("tangram_agent_expert_tokens")) {
        ASSERT_EQ(metric.label.size(), 2u) << "58 x 256 experts are too many series of a rank";
        EXPECT_EQ(metric.label[0].name + metric.label[1].name, "devicelayer");
      }
    }
  }
  EXPECT_GT(seen["tangram_agent_expert_tokens_total1"], 0) << "of layer 1";
  EXPECT_EQ(seen["tangram_agent_epoch"], 3);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_NEAR(seen["tangram_agent_certificate_expiration_timestamp_seconds"],
              std::chrono::duration<double>(now + std::chrono::hours(1)).count(), 15 * 60);
  EXPECT_EQ(seen["tangram_agent_attempts_totalflipped"], 3);
  EXPECT_EQ(seen["tangram_agent_attempt_phaseidle"], 1);
  EXPECT_TRUE(seen.contains("tangram_agent_attempt_phasestaging"));
  EXPECT_EQ(seen["tangram_agent_attempt_phasestaging"], 0);
  EXPECT_GT(seen["tangram_agent_received_bytes_totalcheckpoint"], 0);
}

TEST(World, AddsEnginesByRepairAfterFirstLayout) {
  World world({1, 1, 1});
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  const auto retire = RetireOn(world, 0, World::HeaderOf(1, 1));
  EXPECT_EQ(retire.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "no step was done";
  {
    // They had no part in the flip, so a repair brings them in.
    Engines engines(world);
    ASSERT_TRUE(world.Take(v1::FLIP_KIND_REPAIR, 2, ExpertLayout(world.members(), 2, false)));
    ASSERT_TRUE(RetireAll(world, World::HeaderOf(2, 2)));
    EXPECT_GT(engines.checked_granules(), 0);
    EXPECT_EQ(engines.wrong_granules(), 0);
  }
  // The engines left, so none can vote. The agent notices the end of their sockets.
  ASSERT_TRUE(Eventually([&] { return !world.StatusOf(0).ranks(0).engine().attached(); }));
  const auto refusal = PrepareRefusal(
      world, world.Request(0, v1::FLIP_KIND_LAYOUT, 3, ExpertLayout(world.members(), 3, true)));
  EXPECT_EQ(refusal.code(), v1::Refusal::CODE_ENGINE);
  EXPECT_NE(refusal.message().find("no engine attached"), std::string::npos);
  EXPECT_EQ(world.StatusOf(0).highest_attempt(), 2u) << "a refused Prepare leaves nothing";
}

TEST(World, RejectsStaleOrForeignHeadersWithCurrentHeader) {
  World world({1});
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 5, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(1, 5)));
  const auto target = ExpertLayout(world.members(), 2, true);

  auto request = world.Request(0, v1::FLIP_KIND_LAYOUT, 5, target);
  auto refusal = PrepareRefusal(world, request);
  EXPECT_EQ(refusal.code(), v1::Refusal::CODE_STALE_ATTEMPT);
  EXPECT_EQ(refusal.current().attempt(), 5u);
  EXPECT_EQ(refusal.current().epoch(), 1u);

  request = world.Request(0, v1::FLIP_KIND_LAYOUT, 6, ExpertLayout(world.members(), 8, true));
  refusal = PrepareRefusal(world, request);
  EXPECT_EQ(refusal.code(), v1::Refusal::CODE_STALE_EPOCH);
  EXPECT_EQ(refusal.current().epoch(), 1u);

  request = world.Request(0, v1::FLIP_KIND_LAYOUT, 6, target);
  request.mutable_header()->set_world("other");
  EXPECT_EQ(PrepareRefusal(world, request).code(), v1::Refusal::CODE_WRONG_WORLD);

  request = world.Request(0, v1::FLIP_KIND_LAYOUT, 6, target);
  request.set_target_hash(std::string(32, 'x'));
  EXPECT_EQ(PrepareRefusal(world, request).code(), v1::Refusal::CODE_BAD_PLAN);

  request = world.Request(0, v1::FLIP_KIND_LAYOUT, 6, target);
  request.mutable_geometry()->set_hidden(32);
  EXPECT_EQ(PrepareRefusal(world, request).code(), v1::Refusal::CODE_BAD_GEOMETRY);

  request = world.Request(0, v1::FLIP_KIND_LAYOUT, 6, target);
  request.clear_parts();
  EXPECT_EQ(PrepareRefusal(world, request).code(), v1::Refusal::CODE_BAD_PLAN);

  engines.refuse_prepare = true;
  refusal = PrepareRefusal(world, world.Request(0, v1::FLIP_KIND_LAYOUT, 6, target));
  EXPECT_EQ(refusal.code(), v1::Refusal::CODE_ENGINE);
  EXPECT_NE(refusal.message().find("test says no"), std::string::npos);
  engines.refuse_prepare = false;

  // After all this, the same attempt still succeeds: nothing was left behind.
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_LAYOUT, 6, target));
  EXPECT_EQ(engines.wrong_granules(), 0);
}

TEST(World, RejectsPrepareWhenMemoryTooSmall) {
  World world({1}, 20 * 4096 * 3);
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(1, 1)));
  World tiny({1}, 4096);
  const auto refusal = PrepareRefusal(
      tiny, tiny.Request(0, v1::FLIP_KIND_FIRST, 1, ExpertLayout(tiny.members(), 1, false)));
  EXPECT_EQ(refusal.code(), v1::Refusal::CODE_NO_MEMORY);
  EXPECT_EQ(tiny.StatusOf(0).ranks(0).memory_free(), 4096u);
}

TEST(World, AbortsBeforePermitButNotAfterFlip) {
  World world({1, 1});
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(1, 1)));
  const auto before = world.StatusOf(0);
  const auto target = ExpertLayout(world.members(), 2, true);

  ASSERT_TRUE(world.PrepareAll(v1::FLIP_KIND_LAYOUT, 2, target));
  ASSERT_TRUE(world.StageAll(World::HeaderOf(1, 2)));
  bool flipped = true;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(AbortOn(world, i, World::HeaderOf(1, 2), &flipped).ok());
    EXPECT_FALSE(flipped);
  }
  const auto after = world.StatusOf(0);
  EXPECT_EQ(after.ranks(0).memory_free(), before.ranks(0).memory_free());
  EXPECT_EQ(after.layout_hash(), before.layout_hash());
  EXPECT_EQ(PrepareRefusal(world, world.Request(0, v1::FLIP_KIND_LAYOUT, 2, target)).code(),
            v1::Refusal::CODE_STALE_ATTEMPT)
      << "an aborted attempt is burned";

  ASSERT_TRUE(world.Take(v1::FLIP_KIND_LAYOUT, 3, target));
  EXPECT_TRUE(AbortOn(world, 0, World::HeaderOf(1, 3), &flipped).ok());
  EXPECT_TRUE(flipped) << "too late: the flip is the outcome";
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(2, 3)));
  EXPECT_TRUE(AbortOn(world, 0, World::HeaderOf(2, 3), &flipped).ok());
  EXPECT_TRUE(flipped) << "and stays it after Retire";
  EXPECT_EQ(engines.wrong_granules(), 0);
}

TEST(World, AbortsAfterPermitWhenEnginesDecline) {
  World world({1, 1});
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(1, 1)));
  engines.decline = true;
  ASSERT_TRUE(world.PrepareAll(v1::FLIP_KIND_LAYOUT, 2, ExpertLayout(world.members(), 2, true)));
  ASSERT_TRUE(world.StageAll(World::HeaderOf(1, 2)));
  for (size_t i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::PermitRequest request;
    *request.mutable_header() = World::HeaderOf(1, 2);
    v1::PermitResponse response;
    ASSERT_TRUE(world.Driver(i)->Permit(&context, request, &response).ok());
  }
  ASSERT_TRUE(Eventually([&] { return !world.StatusOf(0).ranks(0).transition().error().empty(); }));
  EXPECT_NE(world.StatusOf(0).ranks(0).transition().error().find("no room for KV"),
            std::string::npos);
  bool flipped = true;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(AbortOn(world, i, World::HeaderOf(1, 2), &flipped).ok());
    EXPECT_FALSE(flipped);
  }
  engines.decline = false;
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_LAYOUT, 3, ExpertLayout(world.members(), 2, true)));
  EXPECT_EQ(engines.wrong_granules(), 0);
}

TEST(World, DoesNotFlipWhenOneAgentLacksPermit) {
  World world({1, 1});
  const auto target = ExpertLayout(world.members(), 1, false);
  ASSERT_TRUE(world.PrepareAll(v1::FLIP_KIND_FIRST, 1, target));
  ASSERT_TRUE(world.StageAll(World::HeaderOf(0, 1)));
  grpc::ClientContext context;
  v1::PermitRequest request;
  *request.mutable_header() = World::HeaderOf(0, 1);
  v1::PermitResponse response;
  ASSERT_TRUE(world.Driver(0)->Permit(&context, request, &response).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(world.StatusOf(0).epoch(), 0u) << "a missing word means no flip";
  // The other agent aborts the attempt, which fences the vote of the first.
  bool flipped = true;
  EXPECT_TRUE(AbortOn(world, 1, World::HeaderOf(0, 1), &flipped).ok());
  EXPECT_FALSE(flipped);
  EXPECT_TRUE(AbortOn(world, 0, World::HeaderOf(0, 1), &flipped).ok());
  EXPECT_FALSE(flipped);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 2, target));
}

TEST(World, AgentsConnectOverIPv6) {
  World world({1, 1}, 64 << 20, "::1");
  for (const v1::PeerAddress& peer : world.peers()) {
    EXPECT_TRUE(peer.agent().starts_with("[::1]:")) << peer.agent();
  }
  // Agents exchange its votes.
  EXPECT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
}

// An agent that listens on [::]. Its metrics use at least IPv4: civetweb may lack IPv6.
TEST(World, AgentsListenOnAllAddresses) {
  World world({1, 1}, 64 << 20, "::");
  EXPECT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  std::ifstream file(world.dir() + "/0.json");
  const auto ready = nlohmann::json::parse(file);
  for (const auto& [port, host] :
       {std::pair{"agent", "127.0.0.1"}, {"agent", "::1"}, {"metrics", "127.0.0.1"}}) {
    const auto at = net::ParseHostPort(ready.at(port).get<std::string>());
    ASSERT_TRUE(at.ok()) << port;
    const auto met =
        net::Connect(net::JoinHostPort(host, at->port), net::Credentials::Insecure(), {});
    EXPECT_TRUE(met.ok()) << port << " at " << host << ": " << met.status().message();
  }
}

TEST(World, AuthorizesCallersByCertificate) {
  World world({1});
  grpc::ClientContext as_agent, unknown, foreign;
  v1::StatusRequest request;
  request.set_world("test");
  v1::StatusResponse response;
  EXPECT_EQ(world.Stub(0, "agent/pod-0")->Status(&as_agent, request, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(world.Stub(0, "drivers")->Status(&unknown, request, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const TestCa other;
  EXPECT_EQ(world.Stub(0, "driver", &other)->Status(&foreign, request, &response).error_code(),
            grpc::StatusCode::UNAVAILABLE)
      << "the handshake fails";
}

TEST(World, WatchReportsImmediatelyAndOnChange) {
  World world({1});
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_world("test");
  const auto stub = world.Driver(0);
  auto reader = stub->Watch(&context, request);
  v1::WatchResponse seen;
  ASSERT_TRUE(reader->Read(&seen));
  EXPECT_EQ(seen.status().epoch(), 0u);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  while (seen.status().epoch() == 0) ASSERT_TRUE(reader->Read(&seen));
  EXPECT_FALSE(seen.status().has_layout());
  context.TryCancel();
}

// An operator watches a thousand worlds: steps cause no messages.
TEST(World, WatchSendsNoMessagePerStep) {
  World world({1});
  const Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(Eventually([&] { return world.StatusOf(0).ranks(0).engine().steps() > 10; }));
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_world("test");
  const auto stub = world.Driver(0);
  const auto begin = std::chrono::steady_clock::now();  // before the first: reads may be late
  auto reader = stub->Watch(&context, request);
  v1::WatchResponse before, seen;
  ASSERT_TRUE(reader->Read(&before));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(reader->Read(&seen));
    EXPECT_GT(seen.status().ranks(0).engine().steps(), before.status().ranks(0).engine().steps());
    before = seen;
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  context.TryCancel();
}

TEST(Socket, ValidatesEnginesAndAcceptsOnlyOne) {
  World world({1});
  const std::string path = world.socket(0);
  const std::string token = world.token(0);
  tg_error error = TG_INIT(tg_error);
  tg_client* client = nullptr;
  tg_options wrong = EngineOptions(path, "not the token", 0, "a:1", "a:2");
  EXPECT_EQ(tg_attach(&wrong, &client, &error), TG_REFUSED);
  EXPECT_NE(std::string(error.message).find("token"), std::string::npos);
  tg_options beyond = EngineOptions(path, token.c_str(), 9, "a:1", "a:2");
  EXPECT_NE(tg_attach(&beyond, &client, &error), TG_OK);
  tg_options good = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  ASSERT_EQ(tg_attach(&good, &client, &error), TG_OK) << error.message;
  tg_client* second = nullptr;
  EXPECT_EQ(tg_attach(&good, &second, &error), TG_REFUSED);
  const tg_tensor* tensors = nullptr;
  size_t size = 0;
  ASSERT_EQ(tg_dense_tensors(client, &tensors, &size), 1u);
  EXPECT_EQ(size, sizeof(tg_tensor));
  EXPECT_STREQ(tensors[0].name, "model.norm.weight");
  tg_detach(client);
  ASSERT_TRUE(Eventually([&] { return tg_attach(&good, &client, &error) == TG_OK; }))
      << "reattach after the first left: " << error.message;
  EXPECT_GE(world.StatusOf(0).ranks(0).engine().incarnation(), 2u);
  tg_detach(client);
}

TEST(Socket, ClearsLoadWhenEngineDetaches) {
  World world({1});
  tg_error error = TG_INIT(tg_error);
  tg_client* client = nullptr;
  const std::string path = world.socket(0), token = world.token(0);
  const tg_options options = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  ASSERT_EQ(tg_attach(&options, &client, &error), TG_OK) << error.message;
  const tg_engine_stats load{sizeof load, 100, 60, 640, 3, 2};
  EXPECT_EQ(tg_report(client, &load, &error), TG_OK);
  EXPECT_EQ(world.StatusOf(0).ranks(0).engine().running(), 3U);
  tg_detach(client);
  ASSERT_TRUE(Eventually([&] { return !world.StatusOf(0).ranks(0).engine().attached(); }));
  // Outside a world an engine takes no steps, so the next one may report nothing for long.
  ASSERT_EQ(tg_attach(&options, &client, &error), TG_OK) << error.message;
  const auto engine = world.StatusOf(0).ranks(0).engine();
  EXPECT_TRUE(engine.attached());
  EXPECT_EQ(engine.kv_pages() - engine.kv_free_pages(), 0U);
  EXPECT_EQ(engine.kv_reserved_tokens() + engine.running() + engine.waiting(), 0U);
  tg_detach(client);
}

TEST(Socket, RejectsInvalidBytesAndServesOtherEngines) {
  World world({1});
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff", 4), std::string(4, '\0'),
                                   std::string("\x02\0\0\0zz", 6), std::string("\x05", 1)}) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", world.socket(0).c_str());
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    if (bytes.size() > 1) {
      FrameChannel channel{std::move(fd)};
      auto reply = channel.Receive(kHangMs);
      ASSERT_TRUE(reply.ok() && reply->has_value());
      EXPECT_TRUE((*reply)->message.has_refused());
    }
  }
  Engines engines(world);
  EXPECT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
}

// Descriptors of this process for memory of weights: the agents' own, and the engines'.
size_t OpenWeights() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    count += target.string().starts_with("/memfd:test-weights") ? 1 : 0;
  }
  return count;
}

// If memory has many handles, each descriptor keeps its memory alive.
TEST(Socket, PassesNeededDescriptorsAndClosesUnused) {
  World world({1, 1});
  const size_t own = OpenWeights();
  Engines engines(world);
  EXPECT_EQ(OpenWeights(), own) << "there is nothing to map yet";
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(0, 1)));
  const size_t first = OpenWeights();
  EXPECT_GT(first, own);
  for (uint64_t epoch = 2; epoch <= 5; ++epoch) {
    const bool there = epoch % 2 == 0;
    ASSERT_TRUE(
        world.Take(v1::FLIP_KIND_LAYOUT, epoch, ExpertLayout(world.members(), epoch, there)));
    const size_t both = OpenWeights();
    ASSERT_TRUE(RetireAll(world, World::HeaderOf(epoch, epoch)));
    EXPECT_LT(OpenWeights(), both) << "what was left is closed";
    if (!there) EXPECT_EQ(OpenWeights(), first);
  }
  EXPECT_EQ(engines.wrong_granules(), 0);
}

// An engine's step may take long; a thread of its client library maps and unmaps meanwhile.
TEST(Socket, MapsAndUnmapsDuringStep) {
  World world({2, 1});
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(0, 1)));
  ASSERT_TRUE(world.PrepareAll(v1::FLIP_KIND_LAYOUT, 2, ExpertLayout(world.members(), 2, true)));
  engines.InAStep([&] { EXPECT_TRUE(world.StageAll(World::HeaderOf(1, 2))); });
  for (size_t i = 0; i < world.size(); ++i) {
    grpc::ClientContext context;
    v1::PermitRequest request;
    *request.mutable_header() = World::HeaderOf(1, 2);
    v1::PermitResponse response;
    ASSERT_TRUE(world.Driver(i)->Permit(&context, request, &response).ok());
  }
  ASSERT_TRUE(world.WaitEpoch(2));
  const int flipped = engines.steps();
  ASSERT_TRUE(Eventually([&] { return engines.steps() > flipped + 2; }));
  const size_t both = OpenWeights();
  engines.InAStep([&] { EXPECT_TRUE(RetireAll(world, World::HeaderOf(2, 2))); });
  EXPECT_LT(OpenWeights(), both) << "what was left is closed";
  EXPECT_EQ(engines.wrong_granules(), 0);
}

// After a flip, an engine's device may still read the previous layout for some time.
TEST(Socket, UnmapsOnlyAfterDeviceIsDone) {
  World world({1, 1});
  Engines engines(world);
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_FIRST, 1, ExpertLayout(world.members(), 1, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(0, 1)));
  const size_t first = OpenWeights();
  const UniqueFd done(eventfd(0, EFD_CLOEXEC));
  engines.done_fd = done.get();
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_LAYOUT, 2, ExpertLayout(world.members(), 2, true)));
  const size_t both = OpenWeights();
  auto retired =
      std::async(std::launch::async, [&] { return RetireAll(world, World::HeaderOf(2, 2)); });
  EXPECT_EQ(retired.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  EXPECT_EQ(OpenWeights(), both);
  EXPECT_EQ(engines.wrong_granules(), 0);
  ASSERT_EQ(eventfd_write(done.get(), 1), 0);
  EXPECT_TRUE(retired.get());
  EXPECT_LT(OpenWeights(), both);
  engines.done_fd = -1;
  ASSERT_TRUE(world.Take(v1::FLIP_KIND_LAYOUT, 3, ExpertLayout(world.members(), 3, false)));
  ASSERT_TRUE(RetireAll(world, World::HeaderOf(3, 3)));
  EXPECT_EQ(OpenWeights(), first);
}

// More descriptors than fit one message are sent before the attach that names them.
TEST(Socket, AcceptsDescriptorsBeforeAttach) {
  World world({1});
  const auto reply_to = [&](const std::vector<v1::EngineMessage>& messages) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", world.socket(0).c_str());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    FrameChannel channel{std::move(fd)};
    const std::vector<PassedFd> passed(2 * kMaxFrameFds + 1, PassedFd{7, 0});
    for (const v1::EngineMessage& message : messages) {
      EXPECT_TRUE(channel.Send(message, passed).ok());
    }
    auto reply = channel.Receive(kHangMs);
    EXPECT_TRUE(reply.ok() && reply->has_value());
    return (*reply)->message.refused().refusal().message();
  };
  v1::EngineMessage attach, closed;
  attach.mutable_attach()->set_token(world.token(0));
  attach.mutable_attach()->mutable_capabilities()->add_slab_formats(v1::SLAB_FORMAT_GRANULE_MAJOR);
  attach.mutable_attach()->mutable_resume()->set_member("uid-0/0/1");
  closed.mutable_closed();
  EXPECT_NE(reply_to({attach}).find("does not wait for an engine"), std::string::npos);
  EXPECT_NE(reply_to({closed}).find("must be an attach"), std::string::npos);
}

TEST(Socket, KeepsMemoryMappedWhenAgentDies) {
  auto world = std::make_unique<World>(std::vector<uint32_t>{1});
  const std::string path = world->socket(0);
  const std::string token = world->token(0);
  tg_options options = EngineOptions(path, token.c_str(), 0, "a:1", "a:2");
  tg_client* client = nullptr;
  tg_error error = TG_INIT(tg_error);
  ASSERT_EQ(tg_attach(&options, &client, &error), TG_OK);
  world.reset();
  tg_event event = TG_INIT(tg_event);
  EXPECT_EQ(tg_poll(client, kHangMs, &event, &error), TG_DISCONNECTED);
  static_cast<uint8_t*>(tg_get_model(client)->kv)[0] = 7;
  EXPECT_EQ(tg_gate_vote(client).hash, 0u);
  EXPECT_EQ(tg_gate_commit(client, &error), TG_AGAIN);
  tg_detach(client);
}

TEST(Agent, WritesActualPortsToReadyFile) {
  World world({2});
  std::ifstream in(world.dir() + "/0.json");
  const auto ready = nlohmann::json::parse(in);
  EXPECT_EQ(ready["agent"], world.agent(0).address());
  EXPECT_EQ(ready["members"].size(), 2u);
  EXPECT_EQ(ready["members"][1], "uid-0/1/1");
}

TEST(Agent, EveryPhaseHasAFaultPoint) {
  const auto points = fault::List();
  for (const char* name : {"prepare.before", "prepare.after", "stage.before_engine_map",
                           "permit.after_arm", "flip.before_commit", "flip.after_commit",
                           "abort.before", "retire.before", "retire.after"}) {
    EXPECT_NE(std::find(points.begin(), points.end(), name), points.end()) << name;
  }
}

}  // namespace
}  // namespace tangram::testing
