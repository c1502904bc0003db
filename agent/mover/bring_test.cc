// Which source is queried for what, and which one replaces it: scripted sources.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "agent/base/testing/no_threads.h"
#include "agent/mover/mover.h"
#include "agent/mover/pacer.h"

namespace tangram::mover {
namespace {

constexpr uint64_t kUnit = 10;

Range Of(std::vector<uint32_t> sources, size_t units = 2) {
  return {std::vector<device::Memory>(units, {nullptr, 0, kUnit}), std::move(sources)};
}

// Fetches `good` ranges per call, then returns the next of `answers` (the last one forever).
class Script final : public Source {
 public:
  Script(std::string name, std::vector<Status> answers, size_t good = SIZE_MAX)
      : name_(std::move(name)), answers_(std::move(answers)), good_(good) {}

  std::string name() const override { return name_; }
  Status Bring(std::span<const Range> job, std::span<const size_t> wanted, const Arrived& arrived,
               const std::stop_token&) override {
    EXPECT_FALSE(busy_.exchange(true)) << "two calls at a time";
    calls.emplace_back(wanted.begin(), wanted.end());
    const Status answer = answers_[std::min(calls.size(), answers_.size()) - 1];
    for (size_t i = 0; i < wanted.size() && (answer.ok() || i < good_); ++i) {
      arrived(wanted[i], std::vector<uint64_t>(job[wanted[i]].units.size(), wanted[i] + 1));
    }
    busy_ = false;
    return answer;
  }

  std::vector<std::vector<size_t>> calls;

 private:
  const std::string name_;
  const std::vector<Status> answers_;
  const size_t good_;
  std::atomic<bool> busy_{false};
};

const Status kGood, kAway(Code::kUnavailable, "away"), kLies(Code::kCorrupt, "differs"),
    kNotYet(Code::kNotHeld, "not yet"), kRefuses(Code::kUnauthenticated, "who are you");

struct Played {
  Status status;
  std::multiset<size_t> arrived;
  std::vector<std::string> failed;
};

Played Play(const std::vector<Range>& job, std::vector<Script*> scripts, Limits limits = {}) {
  Played out;
  std::mutex mu;
  const std::vector<Source*> sources(scripts.begin(), scripts.end());
  limits.ask_again = limits.after_failure = std::chrono::milliseconds(1);
  out.status = Bring(
      job, sources, limits,
      [&](const Source&, size_t range, const std::vector<uint64_t>& hashes) {
        const std::scoped_lock lock(mu);
        EXPECT_EQ(hashes, std::vector<uint64_t>(job[range].units.size(), range + 1));
        out.arrived.insert(range);
      },
      [&](const Source& source, const Status& status) {
        const std::scoped_lock lock(mu);
        out.failed.push_back(source.name() + ": " + status.message());
      },
      {});
  return out;
}

TEST(Bring, FetchesEachRangeOnce) {
  Script a("a", {kGood}), b("b", {kGood});
  const Played played = Play({Of({0}), Of({1}), Of({0, 1}), Of({1, 0})}, {&a, &b});
  ASSERT_TRUE(played.status.ok()) << played.status.message();
  EXPECT_EQ(played.arrived, (std::multiset<size_t>{0, 1, 2, 3}));
  EXPECT_EQ(a.calls, (std::vector<std::vector<size_t>>{{0, 2}}));
  EXPECT_EQ(b.calls, (std::vector<std::vector<size_t>>{{1, 3}}));
}

// A pod may have no processes left (pids limit): the calling thread then fetches alone.
TEST(Bring, SucceedsWhenNoThreadCanStart) {
  Script a("a", {kGood}), b("b", {kGood});
  tangram::testing::WithoutThreads([&] {
    const Played played = Play({Of({0}), Of({1})}, {&a, &b});
    EXPECT_TRUE(played.status.ok()) << played.status.message();
    EXPECT_EQ(played.arrived, (std::multiset<size_t>{0, 1}));
  });
}

// Each range keeps a worker busy, and by its share it rests for as long again.
TEST(Bring, LimitsWorkersToTimeShare) {
  class Slow final : public Source {
   public:
    std::string name() const override { return "slow"; }
    Status Bring(std::span<const Range>, std::span<const size_t> wanted, const Arrived& arrived,
                 const std::stop_token&) override {
      for (const size_t i : wanted) {
        const auto begin = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - begin < 2 * Pacer::kSlice) {
        }
        arrived(i, {});
      }
      return OkStatus();
    }
  } slow;
  Source* const sources[] = {&slow};
  const std::vector<Range> job(4, Of({0}, 0));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(Bring(
                  job, sources, {.share = [] { return 0.25; }},
                  [](const Source&, size_t, const std::vector<uint64_t>&) {},
                  [](const Source&, const Status&) {}, {})
                  .ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 4 * 4 * 2 * Pacer::kSlice);
}

TEST(Bring, CallsNoSourceForEmptyJob) {
  Script a("a", {kGood});
  EXPECT_TRUE(Play({}, {&a}).status.ok());
  EXPECT_TRUE(a.calls.empty());
}

TEST(Bring, LimitsEachCallToOneBatch) {
  Script a("a", {kGood});
  const Played played =
      Play({Of({0}), Of({0}), Of({0}), Of({0}, 100), Of({0})}, {&a}, {.batch_bytes = 4 * kUnit});
  ASSERT_TRUE(played.status.ok());
  EXPECT_EQ(a.calls, (std::vector<std::vector<size_t>>{{0, 1}, {2}, {3}, {4}}));
}

TEST(Bring, RetriesOnlyMissingRanges) {
  Script a("a", {kAway, kGood}, 2);
  const Played played = Play({Of({0}), Of({0}), Of({0}), Of({0})}, {&a});
  ASSERT_TRUE(played.status.ok()) << played.status.message();
  EXPECT_EQ(a.calls, (std::vector<std::vector<size_t>>{{0, 1, 2, 3}, {2, 3}}));
  EXPECT_EQ(played.failed, (std::vector<std::string>{"a: away"}));
}

TEST(Bring, SwitchesSourceAfterTwoFailures) {
  for (const Status& bad : {kAway, kLies}) {
    Script a("a", {bad}, 1), b("b", {kGood});
    const Played played = Play({Of({0, 1}), Of({0, 1}), Of({0, 1}), Of({0, 1})}, {&a, &b});
    ASSERT_TRUE(played.status.ok()) << played.status.message();
    EXPECT_EQ(a.calls, (std::vector<std::vector<size_t>>{{0, 1, 2, 3}, {1, 2, 3}}));
    EXPECT_EQ(b.calls, (std::vector<std::vector<size_t>>{{2, 3}}));
    EXPECT_EQ(played.arrived, (std::multiset<size_t>{0, 1, 2, 3}));
  }
}

// While a connection is down every call fails: that counts as one failure, and the source is not
// queried again immediately.
TEST(Bring, CountsConcurrentLaneFailuresAsOne) {
  class Moment final : public Source {
   public:
    std::string name() const override { return "moment"; }
    size_t lanes() const override { return 2; }
    Status Bring(std::span<const Range> job, std::span<const size_t> wanted, const Arrived& arrived,
                 const std::stop_token&) override {
      if (asked_++ < 2) {
        both_.arrive_and_wait();
        return kAway;
      }
      if (std::chrono::steady_clock::now() < until_) return kAway;
      for (const size_t i : wanted) arrived(i, std::vector<uint64_t>(job[i].units.size(), i + 1));
      return OkStatus();
    }

   private:
    std::atomic<int> asked_{0};
    std::barrier<> both_{2};
    const std::chrono::steady_clock::time_point until_ =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  } moment;
  Script other("other", {kGood});
  Source* const sources[] = {&moment, &other};
  // Enough ranges for a call on both lanes.
  const std::vector<Range> job(8, {std::vector<device::Memory>(1, {nullptr, 0, 64 << 20}), {0, 1}});
  std::atomic<int> failures{0};
  const Status status = Bring(
      job, sources, {}, [](const Source&, size_t, const std::vector<uint64_t>&) {},
      [&](const Source&, const Status&) { ++failures; }, {});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(failures, 2);
  EXPECT_TRUE(other.calls.empty()) << "what it had was brought from elsewhere";
}

TEST(Bring, StartsNoThreadForSingleCall) {
  class Where final : public Source {
   public:
    std::string name() const override { return "where"; }
    size_t lanes() const override { return 2; }
    Status Bring(std::span<const Range> job, std::span<const size_t> wanted, const Arrived& arrived,
                 const std::stop_token&) override {
      others += std::this_thread::get_id() == caller ? 0 : 1;
      for (const size_t i : wanted) arrived(i, std::vector<uint64_t>(job[i].units.size(), i + 1));
      return OkStatus();
    }
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> others{0};
  } where;
  Source* const sources[] = {&where};
  const std::vector<Range> job(8, Of({0}));
  for (int i = 0; i < 200; ++i) {
    const Status status = Bring(
        job, sources, {}, [](const Source&, size_t, const std::vector<uint64_t>&) {},
        [](const Source&, const Status&) {}, {});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(where.others, 0);
}

TEST(Bring, ReassignsQueuedRangesOfFailedSource) {
  Script a("a", {kAway}, 0), b("b", {kGood});
  const Played played =
      Play({Of({0, 1}), Of({0, 1}), Of({0, 1})}, {&a, &b}, {.workers = 1, .batch_bytes = kUnit});
  ASSERT_TRUE(played.status.ok()) << played.status.message();
  EXPECT_EQ(a.calls, (std::vector<std::vector<size_t>>{{0}, {0}}));
  EXPECT_EQ(b.calls, (std::vector<std::vector<size_t>>{{0}, {1}, {2}}));
}

TEST(Bring, RetriesRangeNotYetResidentWithoutBlockingOthers) {
  Script a("a", {kNotYet, kNotYet, kNotYet, kGood}, 0), b("b", {kGood});
  const Played played = Play({Of({0}), Of({1})}, {&a, &b}, {.workers = 1});
  ASSERT_TRUE(played.status.ok()) << played.status.message();
  EXPECT_EQ(a.calls.size(), 4U);
  EXPECT_TRUE(played.failed.empty());
}

TEST(Bring, SkipsFallbackSourceWithoutRange) {
  Script a("a", {kAway}, 0), b("b", {kNotYet}, 0), c("c", {kGood});
  const Played played = Play({Of({0, 1, 2})}, {&a, &b, &c});
  ASSERT_TRUE(played.status.ok()) << played.status.message();
  EXPECT_EQ(b.calls.size(), 1U);
  EXPECT_EQ(c.calls.size(), 1U);
}

TEST(Bring, FailsWithAllErrorsWhenEverySourceFails) {
  Script a("a", {kAway}, 0), b("b", {kLies}, 0);
  const Played played = Play({Of({0, 1})}, {&a, &b});
  EXPECT_EQ(played.status.code(), Code::kCorrupt);
  EXPECT_EQ(played.status.message(), "a: away; a: away; b: differs; b: differs");
  EXPECT_EQ(Play({Of({})}, {&a}).status.code(), Code::kBadPlan);
}

TEST(Bring, FailsImmediatelyWhenUnauthenticated) {
  Script a("a", {kRefuses}, 0), b("b", {kGood});
  const Played played = Play({Of({0, 1})}, {&a, &b});
  EXPECT_EQ(played.status.code(), Code::kUnauthenticated);
  EXPECT_EQ(a.calls.size(), 1U);
  EXPECT_TRUE(b.calls.empty());
}

TEST(Bring, StopsOnRequest) {
  class Stuck final : public Source {
   public:
    std::string name() const override { return "stuck"; }
    Status Bring(std::span<const Range>, std::span<const size_t>, const Arrived&,
                 const std::stop_token& stop) override {
      entered = true;
      while (!stop.stop_requested()) std::this_thread::yield();
      return {Code::kUnavailable, "stopped"};
    }
    std::atomic<bool> entered{false};
  };
  Stuck stuck;
  std::stop_source stop;
  const std::vector<Range> job{Of({0})};
  Source* const sources[] = {&stuck};
  std::jthread stopper([&] {
    while (!stuck.entered) std::this_thread::yield();
    stop.request_stop();
  });
  const Status status = Bring(
      job, sources, {}, [](const auto&, size_t, const auto&) {}, [](const auto&, const auto&) {},
      stop.get_token());
  EXPECT_EQ(status.code(), Code::kUnavailable);
}

// Calls to it wait until `together` calls were in progress, and until another source was queried.
class Wide final : public Source {
 public:
  Wide(size_t lanes, size_t together) : lanes_(lanes), together_(together) {}
  std::string name() const override { return "wide"; }
  size_t lanes() const override { return lanes_; }
  Status Bring(std::span<const Range> job, std::span<const size_t> wanted, const Arrived& arrived,
               const std::stop_token&) override {
    ++calls;
    now += 1;
    most = std::max<size_t>(most, now);
    while (most < together_ || (other != nullptr && other->calls == 0)) std::this_thread::yield();
    now -= 1;
    for (const size_t i : wanted) arrived(i, std::vector<uint64_t>(job[i].units.size()));
    return OkStatus();
  }
  const Wide* other = nullptr;
  std::atomic<size_t> calls{0}, now{0}, most{0};

 private:
  const size_t lanes_, together_;
};

template <typename Sources>
Status BringFrom(const Sources& which, const std::vector<Range>& job, size_t workers) {
  const std::vector<Source*> sources(which.begin(), which.end());
  return Bring(
      job, sources, {.workers = workers}, [](const auto&, size_t, const auto&) {},
      [](const auto&, const auto&) {}, {});
}

// Memory that is never accessed: 8 MiB per range.
Range Large(std::vector<uint32_t> sources) {
  return {{device::Memory{nullptr, 0, 8 << 20}}, std::move(sources)};
}

TEST(Bring, SplitsJobOverTwoLanesOfOneSource) {
  Wide one(2, 2);
  ASSERT_TRUE(BringFrom(std::vector{&one}, {Large({0}), Large({0})}, 4).ok());
  EXPECT_EQ(one.calls, 2U);
  Wide narrow(1, 1);
  ASSERT_TRUE(BringFrom(std::vector{&narrow}, {Large({0}), Large({0})}, 4).ok());
  EXPECT_EQ(narrow.calls, 1U);
  EXPECT_EQ(narrow.most, 1U);
}

TEST(Bring, UsesOtherSourceBeforeSecondLane) {
  Wide first(2, 1), second(2, 1);
  first.other = &second;
  second.other = &first;
  ASSERT_TRUE(
      BringFrom(std::vector{&first, &second}, {Large({0}), Large({0}), Large({1}), Large({1})}, 2)
          .ok());
}

// A call costs both sides a token and, for memory of the same machine, a connection.
TEST(Bring, CallsEachSourceOnceWhileOthersRemain) {
  std::vector<std::unique_ptr<Wide>> all;
  std::vector<Wide*> sources;
  std::vector<Range> job;
  for (uint32_t s = 0; s < 4; ++s) {
    sources.push_back(all.emplace_back(std::make_unique<Wide>(2, 0)).get());
    for (int i = 0; i < 4; ++i) job.push_back(Large({s}));
  }
  ASSERT_TRUE(BringFrom(sources, job, 2).ok());
  for (size_t s = 0; s < 3; ++s) EXPECT_EQ(sources[s]->calls, 1U) << s;
  EXPECT_GE(sources[3]->calls, 2U) << "what is left is shared";
}

// Sources fail at random. Every range that some source has is fetched once, and no source is
// queried after two failures.
TEST(Bring, FetchesRangesOnceDespiteRandomFailures) {
  std::mt19937_64 draw(11);
  int whole = 0, broken = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<std::unique_ptr<Script>> owned;
    std::vector<Script*> scripts;
    for (size_t s = 0; s < 1 + draw() % 5; ++s) {
      std::vector<Status> answers;
      for (size_t i = draw() % 4; i > 0; --i) {
        answers.push_back(draw() % 3 == 0 ? kNotYet : draw() % 2 == 0 ? kAway : kLies);
      }
      if (answers.empty() || answers.back().code() == Code::kNotHeld || draw() % 2 == 0) {
        answers.push_back(kGood);
      }
      owned.push_back(std::make_unique<Script>(std::string(1, char('a' + s)), answers, draw() % 3));
      scripts.push_back(owned.back().get());
    }
    std::vector<Range> job(draw() % 20);
    for (Range& range : job) {
      std::vector<uint32_t> sources(scripts.size());
      for (uint32_t s = 0; s < sources.size(); ++s) sources[s] = s;
      std::shuffle(sources.begin(), sources.end(), draw);
      sources.resize(1 + draw() % sources.size());
      range = Of(std::move(sources), 1 + draw() % 3);
    }
    const Played played =
        Play(job, scripts, {.workers = 1 + draw() % 3, .batch_bytes = kUnit * (1 + draw() % 10)});
    for (size_t i = 0; i < job.size(); ++i) ASSERT_LE(played.arrived.count(i), 1U);
    if (played.status.ok()) {
      ++whole;
      ASSERT_EQ(played.arrived.size(), job.size());
    } else {
      ++broken;
      ASSERT_NE(played.status.message(), "");
    }
    for (const Script* script : scripts) {
      const auto failures = std::count_if(
          played.failed.begin(), played.failed.end(),
          [&](const std::string& what) { return what.starts_with(script->name() + ":"); });
      ASSERT_LE(failures, 2) << script->name();
    }
  }
  EXPECT_GT(whole, 100);
  EXPECT_GT(broken, 20);
}

}  // namespace
}  // namespace tangram::mover
