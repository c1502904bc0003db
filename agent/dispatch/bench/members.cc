// The cost of a lost rank for the others, and of a change of members for all.
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/dispatch/bench/benches.h"
#include "agent/dispatch/bench/ranks.h"

namespace tangram::dispatch::bench {
namespace {

constexpr Format kFormat{.hidden = 7168, .top_k = 8, .experts = 256, .most_tokens = 256};
constexpr size_t kMask = 4000, kConnect = 4001, kJoin = 4002, kLeave = 4003, kProcess = 4004;

// Experts only on the first two ranks: the third one only sends rows.
std::shared_ptr<const Routes> OfTwo(uint32_t rank, uint32_t ranks) {
  return rank < 2 ? RoutesFor(rank, 2, kFormat.experts) : RoutesFor(ranks, 2, kFormat.experts);
}

Status Pair(Buffer& buffer, const Drawn& drawn, std::vector<uint16_t>& y) {
  const auto handle = buffer.Dispatch(0, drawn.rows);
  if (!handle.ok()) return handle.status();
  return buffer.Combine(*handle, buffer.exchange().packed(*handle).x, y.data());
}

}  // namespace

int Masked(bool quick, bool (*print)(const nlohmann::json&)) {
  const int rounds = 20, pairs = quick ? 3 : 10;
  const auto timeout = std::chrono::milliseconds(500);
  Folder with, without;
  Stage stage(3);
  const bool good = OnRanks(stage, [&](uint32_t rank) -> Status {
    BufferOptions options{.format = kFormat, .geometry = {}, .exchange = {.timeout = timeout}};
    const Drawn drawn = Draw(kFormat, kFormat.most_tokens, rank + 1);
    std::vector<uint16_t> y(drawn.x.size());
    stage.figure(rank, kMask) = 0;
    stage.figure(rank, kProcess) = getpid();
    auto three = Enter(with, rank, 3, options);
    if (!three.ok()) return three.status();
    std::vector<MemberId> ids;
    for (uint32_t r = 0; r < 3; ++r) ids.push_back(with.MemberOf(r).id);
    TANGRAM_RETURN_IF_ERROR((*three)->UpdateMembers(2, ids, OfTwo(rank, 3)));
    TANGRAM_RETURN_IF_ERROR(Pair(**three, drawn, y));
    stage.Meet();
    if (rank == 2) {
      kill(getpid(), SIGSTOP);
      // The other ranks have finished.
      return OkStatus();
    }
    // Rank 2 is stopped from now on, or a moment later.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Status status;
    stage.Meet(2);
    // A pair without rows: only the wait is left.
    const Drawn none = Draw(kFormat, 0, 1);
    stage.figure(rank, kMask) = Seconds([&] { status = Pair(**three, none, y); });
    TANGRAM_RETURN_IF_ERROR(status);
    if ((*three)->exchange().active_ranks()[2] != 0)
      return {Code::kInternal, "the stopped rank is not masked"};
    auto two = Enter(without, rank, 2, options);
    if (!two.ok()) return two.status();
    for (int i = 0; i < 2 * rounds && status.ok(); ++i) {
      Buffer& buffer = i % 2 == 0 ? **three : **two;
      stage.Meet(2);
      stage.figure(rank, static_cast<size_t>(i)) = Seconds([&] {
        for (int p = 0; p < pairs && status.ok(); ++p) status = Pair(buffer, drawn, y);
      });
    }
    stage.Meet(2);
    if (rank == 0) kill(static_cast<pid_t>(stage.figure(2, kProcess)), SIGCONT);
    return status;
  });
  if (!good) return 1;
  std::vector<double> masked, whole;
  for (int i = 0; i < rounds; ++i) {
    masked.push_back(stage.MostOf(static_cast<size_t>(2 * i)));
    whole.push_back(stage.MostOf(static_cast<size_t>(2 * i + 1)));
  }
  const double late = stage.MostOf(kMask) * 1e3 - static_cast<double>(timeout.count());
  print({{"bench", "dispatch-masked"},
         {"value", Median(masked) / Median(whole)},
         {"unit", "a pair of a world with one of three ranks masked over that of a world of two"},
         {"metrics",
          {{"masked_ms", Median(masked) * 1e3 / pairs},
           {"without_ms", Median(whole) * 1e3 / pairs},
           {"timeout_ms", timeout.count()},
           {"ms_beyond_timeout", late}}}});
  return 0;
}

int MembersChange(bool quick, bool (*print)(const nlohmann::json&)) {
  const uint32_t ranks = quick ? 16 : 64;
  Folder folder;
  Stage stage(ranks);
  const bool good = OnRanks(stage, [&](uint32_t rank) -> Status {
    Format format{.hidden = 128, .top_k = 8, .experts = 256, .most_tokens = 16};
    const BufferOptions options{.format = format, .geometry = {2, 16 << 10}, .exchange = {}};
    auto buffer = Buffer::Create(folder.MemberOf(rank), options, net::Credentials::Insecure());
    if (!buffer.ok()) return buffer.status();
    std::vector<Member> members;
    std::vector<MemberId> ids;
    for (uint32_t r = 0; r < ranks; ++r) {
      members.push_back(folder.MemberOf(r));
      ids.push_back(members.back().id);
    }
    const bool joins = rank == ranks - 1;
    Status status;
    const std::span most = std::span(members).first(ranks - 1);
    if (!joins) {
      status = (*buffer)->Prepare(most, std::chrono::seconds(120));
      TANGRAM_RETURN_IF_ERROR(status);
      TANGRAM_RETURN_IF_ERROR((*buffer)->UpdateMembers(1, std::span(ids).first(ranks - 1),
                                                       RoutesFor(rank, ranks - 1, 256)));
    }
    stage.Meet();
    stage.figure(rank, kConnect) =
        Seconds([&] { status = (*buffer)->Prepare(members, std::chrono::seconds(120)); });
    TANGRAM_RETURN_IF_ERROR(status);
    const auto routes = RoutesFor(rank, ranks, 256);
    const Drawn drawn = Draw(format, 16, rank);
    std::vector<uint16_t> y(drawn.x.size());
    stage.Meet();
    stage.figure(rank, kJoin) = Seconds([&] { status = (*buffer)->UpdateMembers(2, ids, routes); });
    TANGRAM_RETURN_IF_ERROR(status);
    // Proof that the world works: one pair among all ranks.
    TANGRAM_RETURN_IF_ERROR(Pair(**buffer, drawn, y));
    if (!(*buffer)->exchange().report().whole())
      return {Code::kInternal, "the world that one joined lacks something"};
    stage.Meet();
    if (joins) return OkStatus();
    const auto fewer = RoutesFor(rank, ranks - 1, 256);
    stage.Meet(ranks - 1);
    stage.figure(rank, kLeave) = Seconds(
        [&] { status = (*buffer)->UpdateMembers(3, std::span(ids).first(ranks - 1), fewer); });
    TANGRAM_RETURN_IF_ERROR(status);
    return Pair(**buffer, drawn, y);
  });
  if (!good) return 1;
  const double join = stage.MostOf(kJoin) * 1e3, leave = stage.MostOf(kLeave) * 1e3;
  print({{"bench", "dispatch-members"},
         {"value", std::max(join, leave)},
         {"unit", "ms of the slowest rank to change its members, one of them joins or leaves"},
         {"metrics",
          {{"ranks", ranks},
           {"join_ms", join},
           {"leave_ms", leave},
           {"connect_ms", stage.MostOf(kConnect) * 1e3}}}});
  return 0;
}

}  // namespace tangram::dispatch::bench
