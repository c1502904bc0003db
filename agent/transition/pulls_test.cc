// Reads by other agents of the world: only pieces that the attempt assigns to their own ranks.
#include <gtest/gtest.h>

#include "agent/transition/testing/agent.h"

namespace tangram::testing {
namespace {

#define ASSERT_OK(expr)                                              \
  do {                                                               \
    const Status status_ = (expr);                                   \
    ASSERT_TRUE(status_.ok()) << #expr << ": " << status_.message(); \
  } while (false)

// Two ranks in one agent; in the layouts, each belongs to a pod of its own.
class PullsTest : public ::testing::Test {
 protected:
  static v1::Layout InPods(v1::Layout layout) {
    layout.mutable_members(0)->set_pod("pod-a");
    layout.mutable_members(1)->set_pod("pod-b");
    return layout;
  }
  // A request of `pod` to rank 0 for the first piece that the target gives to `rank`.
  Code AskForPieceOf(uint32_t rank, uint64_t attempt, const std::string& pod) {
    const auto pieces = layout::PiecesOf(first_, agent_.stores.geometry(), rank);
    v1::OpenPullRequest request = Ask(attempt);
    request.mutable_pieces()->add_layer(pieces[0].layer);
    request.mutable_pieces()->add_expert(pieces[0].expert);
    request.mutable_pieces()->add_granule_start(pieces[0].run.start);
    request.mutable_pieces()->add_granule_count(pieces[0].run.count);
    return agent_.executor->OpenPull(request, pod).status().code();
  }
  Code AskForKv(uint64_t attempt, const std::string& pod) {
    v1::OpenPullRequest request = Ask(attempt);
    request.set_kv(true);
    return agent_.executor->OpenPull(request, pod).status().code();
  }
  v1::OpenPullRequest Ask(uint64_t attempt) {
    v1::OpenPullRequest request;
    *request.mutable_header() = agent_.Header(attempt);
    request.set_member(first_.members(0).id());
    return request;
  }
  void Staged(v1::FlipKind kind, uint64_t attempt, const v1::Layout& target) {
    ASSERT_OK(agent_.Prepare(kind, attempt, target));
    ASSERT_OK(agent_.Stage(attempt));
    agent_.AwaitPhase(v1::PHASE_STAGED);
  }

  OneAgent agent_{2};
  v1::Layout first_ = InPods(agent_.First());
};

TEST_F(PullsTest, AllowsPodToReadPiecesOfItsRanks) {
  ASSERT_NO_FATAL_FAILURE(Staged(v1::FLIP_KIND_FIRST, 1, first_));
  EXPECT_EQ(AskForPieceOf(0, 1, "pod-a"), Code::kOk);
  EXPECT_EQ(AskForPieceOf(0, 1, "pod-b"), Code::kUnauthenticated) << "a piece of rank 0";
  EXPECT_EQ(AskForPieceOf(1, 1, "pod-b"), Code::kUnavailable) << "its own, not to come to rank 0";
  v1::OpenPullRequest dense = Ask(1);
  dense.add_dense_parts(0);
  EXPECT_EQ(agent_.executor->OpenPull(dense, "pod-b").status().code(), Code::kOk)
      << "all ranks hold these";
  for (const std::string stranger : {"", "pod", "pod-c"}) {
    EXPECT_EQ(agent_.executor->OpenPull(dense, stranger).status().code(), Code::kUnauthenticated)
        << stranger;
  }
}

TEST_F(PullsTest, RejectsPieceBeyondTarget) {
  ASSERT_NO_FATAL_FAILURE(Staged(v1::FLIP_KIND_FIRST, 1, first_));
  const auto piece = layout::PiecesOf(first_, agent_.stores.geometry(), 0)[0];
  for (const layout::Run run :
       {layout::Run{piece.run.start, piece.run.count + 1},
        layout::Run{piece.run.start + piece.run.count, 1}, layout::Run{~0U, 2}}) {
    v1::OpenPullRequest request = Ask(1);
    request.mutable_pieces()->add_layer(piece.layer);
    request.mutable_pieces()->add_expert(piece.expert);
    request.mutable_pieces()->add_granule_start(run.start);
    request.mutable_pieces()->add_granule_count(run.count);
    EXPECT_EQ(agent_.executor->OpenPull(request, "pod-a").status().code(), Code::kUnauthenticated)
        << run.start << "+" << run.count;
  }
}

// A row without granules, for a tail, is allowed if the target gives the rank some of the expert.
TEST_F(PullsTest, RejectsTailOfUnassignedExpert) {
  ASSERT_NO_FATAL_FAILURE(Staged(v1::FLIP_KIND_FIRST, 1, first_));
  const auto piece = layout::PiecesOf(first_, agent_.stores.geometry(), 0)[0];
  v1::OpenPullRequest request = Ask(1);
  request.mutable_pieces()->add_layer(piece.layer);
  request.mutable_pieces()->add_expert(piece.expert);
  request.mutable_pieces()->add_granule_start(0);
  request.mutable_pieces()->add_granule_count(0);
  request.add_tails(0);
  EXPECT_EQ(agent_.executor->OpenPull(request, "pod-b").status().code(), Code::kUnauthenticated);
  EXPECT_EQ(agent_.executor->OpenPull(request, "pod-a").status().code(), Code::kInvalid)
      << "it may, but experts of this model have none";
}

TEST_F(PullsTest, AllowsKvReadOnlyWhenAttentionChanges) {
  ASSERT_NO_FATAL_FAILURE(Staged(v1::FLIP_KIND_FIRST, 1, first_));
  EXPECT_EQ(AskForKv(1, "pod-b"), Code::kUnauthenticated) << "there is none";
  ASSERT_OK(agent_.executor->Permit(agent_.Header(1)));
  agent_.AwaitEpoch(1);
  ASSERT_OK(agent_.Retire(1));

  ASSERT_NO_FATAL_FAILURE(Staged(v1::FLIP_KIND_LAYOUT, 2, agent_.Again()));
  EXPECT_EQ(AskForKv(2, "pod-b"), Code::kUnauthenticated) << "every request stays";
  ASSERT_TRUE(agent_.executor->Abort(agent_.Header(2), "a test").ok());

  bool done = false;
  const v1::Layout fewer = agent_.stores.Reshaped(1, 1, &done);
  ASSERT_NO_FATAL_FAILURE(Staged(v1::FLIP_KIND_LAYOUT, 3, fewer));
  EXPECT_EQ(AskForKv(3, "pod-a"), Code::kOk);
  EXPECT_EQ(AskForKv(3, "pod-c"), Code::kUnauthenticated);
  EXPECT_EQ(AskForKv(2, "pod-a"), Code::kStaleAttempt);
}

}  // namespace
}  // namespace tangram::testing
