// Invalid manifests are rejected before a scheduler uses their contents.
#include "e2e/engine/transition/manifest.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace tangram::engine {
namespace {

RankManifest Sound() {
  RankManifest out;
  Sequence& runs = out.running.emplace_back();
  runs.submit.set_request("runs");
  runs.submit.add_prompt(3);
  runs.submit.add_prompt(4);
  runs.submit.set_max_tokens(5);
  runs.gateway = "g";
  runs.tokens = {3, 4, 9};
  runs.computed = 2;
  runs.blocks = {7};
  Sequence& waits = out.waiting.emplace_back();
  waits.submit.set_request("waits");
  waits.submit.add_prompt(1);
  waits.submit.set_max_tokens(1);
  waits.tokens = {1};
  out.idle = {{{8, 9}, {5, 6, 7, 8}}, {{4}, {1, 2}}};
  out.pages = {32, 30, {{0, 7, 0, 0, 2, 4, 1}}};
  return out;
}

TEST(Manifest, RoundTrip) {
  RankManifest uneven = Sound();
  uneven.promised = {1};
  EXPECT_FALSE(DecodeManifest(EncodeManifest(uneven), 2).ok()) << "a promise for each, or none";
  const Bytes bytes = EncodeManifest(Sound());
  const Result<RankManifest> read = DecodeManifest(bytes, 2);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->running.at(0).id(), "runs");
  EXPECT_EQ(read->running[0].gateway, "g");
  EXPECT_EQ(read->running[0].tokens, (std::vector<uint32_t>{3, 4, 9}));
  EXPECT_EQ(read->running[0].blocks, (std::vector<uint32_t>{7}));
  EXPECT_EQ(read->waiting.at(0).id(), "waits");
  ASSERT_EQ(read->idle.size(), 2u);
  EXPECT_EQ(read->idle[0].blocks, (std::vector<uint32_t>{8, 9}));
  EXPECT_EQ(read->idle[0].tokens, (std::vector<uint32_t>{5, 6, 7, 8}));
  EXPECT_EQ(read->pages.total_pages, 32u);
  EXPECT_EQ(read->pages.strips, (std::vector<kv::Strip>{{0, 7, 0, 0, 2, 4, 1}}));
  EXPECT_EQ(EncodeManifest(*read), bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeManifest({bytes.begin(), bytes.begin() + static_cast<long>(size)}, 2).ok());
  }
}

// The scheduler relies on the tokens at computed positions, and on the blocks of a prompt.
TEST(Manifest, RejectsRequestsInvalidForScheduler) {
  const std::map<std::string, std::function<void(Sequence&, Sequence&)>> damages = {
      {"KV of a position without a token", [](Sequence& runs, Sequence&) { runs.computed = 3; }},
      {"a token of the prompt is missing",
       [](Sequence& runs, Sequence&) {
         runs.tokens = {3};
         runs.computed = 0;
       }},
      {"no prompt", [](Sequence&, Sequence& waits) { waits.submit.clear_prompt(); }},
      {"as many tokens as it may come to",
       [](Sequence& runs, Sequence&) { runs.tokens.resize(7); }},
      {"a reservation that wraps",
       [](Sequence& runs, Sequence&) { runs.submit.set_max_tokens(UINT32_MAX - 1); }},
      {"KV of a request that waits", [](Sequence&, Sequence& waits) { waits.blocks = {3}; }},
  };
  for (const auto& [what, damage] : damages) {
    RankManifest manifest = Sound();
    damage(manifest.running[0], manifest.waiting[0]);
    EXPECT_EQ(DecodeManifest(EncodeManifest(manifest), 2).status().code(), Code::kInternal) << what;
  }
  const std::vector<std::pair<const char*, Chain>> chains = {
      {"no blocks", {{}, {}}}, {"a token too few", {{1, 2}, {1, 2, 3}}}, {"none", {{1}, {}}}};
  for (const auto& [what, chain] : chains) {
    RankManifest manifest = Sound();
    manifest.idle.push_back(chain);
    EXPECT_EQ(DecodeManifest(EncodeManifest(manifest), 2).status().code(), Code::kInternal) << what;
  }
  RankManifest most = Sound();
  most.running[0].tokens.resize(6);
  most.running[0].computed = 5;
  most.running[0].submit.set_max_tokens(UINT32_MAX - 2);
  EXPECT_TRUE(DecodeManifest(EncodeManifest(most), 2).ok());
}

}  // namespace
}  // namespace tangram::engine
