// Requests to a world of engine threads, and checks of their results.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "e2e/engine/model/oracle.h"
#include "e2e/engine/testing/test_world.h"

namespace tangram::engine::testing {

// Every other request is sampled. Tokens are below 97.
inline v1::Submit MakeRequest(uint32_t n, uint32_t prompt, uint32_t tokens) {
  std::mt19937 random(n);
  v1::Submit out;
  out.set_request("r" + std::to_string(n));
  for (uint32_t i = 0; i < prompt; ++i) out.add_prompt(random() % 97);
  out.set_max_tokens(tokens);
  out.set_seed(n);
  if (n % 2 == 1) {
    out.set_temperature(0.9f);
    out.set_top_p(0.95f);
  }
  return out;
}

// Expects the oracle's tokens and logit hashes.
inline void ExpectOracles(TestWorld& world, const model::Checkpoint& checkpoint,
                          const std::vector<v1::Submit>& submits) {
  const auto oracle = model::Oracle::Create(checkpoint);
  ASSERT_TRUE(oracle.ok()) << oracle.status().message();
  std::vector<model::OracleRequest> requests;
  for (const v1::Submit& submit : submits) {
    requests.push_back({{submit.prompt().begin(), submit.prompt().end()},
                        submit.max_tokens(),
                        {submit.temperature(), submit.top_p(), submit.seed()},
                        {submit.stop_tokens().begin(), submit.stop_tokens().end()}});
  }
  const auto expected = oracle->Run(requests, {});
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  for (size_t i = 0; i < submits.size(); ++i) {
    const std::vector<v1::Token> got = world.sink.Stream(submits[i].request());
    ASSERT_EQ(got.size(), (*expected)[i].tokens.size()) << submits[i].request();
    for (size_t k = 0; k < got.size(); ++k) {
      ASSERT_EQ(got[k].position(), submits[i].prompt_size() + k);
      ASSERT_EQ(got[k].logit_hash(), (*expected)[i].hashes[k])
          << submits[i].request() << " token " << k << " by " << got[k].owner() << " in epoch "
          << got[k].epoch();
      ASSERT_EQ(got[k].token(), (*expected)[i].tokens[k]);
    }
  }
}

// Expects that at rest no request is left, and no page is lost.
inline void ExpectAllFree(TestWorld& world) {
  world.Stop();
  EXPECT_EQ(world.Failure(), "");
  for (const auto& rank : world.ranks) {
    EXPECT_TRUE(rank->engine->reference().pages().Audit().ok())
        << rank->engine->reference().pages().Audit().message();
    EXPECT_EQ(rank->engine->reference().scheduler().running() +
                  rank->engine->reference().scheduler().waiting(),
              0u);
  }
}

// The same, with caches: after a step without work has reported the last freed blocks, all pages
// that are not free are idle.
inline void ExpectNothingHeld(TestWorld& world) {
  const auto given_up = std::chrono::steady_clock::now() + tangram::testing::kHang;
  for (const auto& rank : world.ranks) {
    const tg_maps* maps = rank->world->maps();
    if (rank->stop || maps == nullptr || maps->rank < 0)
      continue;  // the member was killed, or left
    const uint64_t before = rank->world->reports();
    while (rank->world->reports() < before + 2 || !rank->world->all_free()) {
      if (std::chrono::steady_clock::now() > given_up)
        break;  // the checks below report the failure
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ExpectAllFree(world);
  for (const auto& rank : world.ranks) {
    const Reference& engine = rank->engine->reference();
    EXPECT_EQ(engine.pages().free() + engine.scheduler().IdlePages(), engine.pages().total())
        << rank->world->member() << ": " << engine.scheduler().idle_blocks() << " idle blocks";
  }
}

}  // namespace tangram::engine::testing
