#include "agent/dispatch/bench/ranks.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>

#include "agent/dispatch/testing/layout.h"

namespace tangram::dispatch::bench {

struct Stage::Shared {
  std::atomic<uint64_t> came[kRanks + 1];  // by the number of ranks that meet
  double figures[kRanks][kFigures];
};

Stage::Stage(uint32_t ranks) : ranks_(ranks) {
  shared_ = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared_ == MAP_FAILED) std::abort();
}

Stage::~Stage() { munmap(shared_, sizeof(Shared)); }

void Stage::Meet(uint32_t of) {
  std::atomic<uint64_t>& came = shared_->came[of];
  const uint64_t ticket = came.fetch_add(1, std::memory_order_acq_rel);
  const uint64_t all = (ticket / of + 1) * of;
  for (uint32_t polls = 0; came.load(std::memory_order_acquire) < all; ++polls)
    if (polls > 1000) sched_yield();
}

double& Stage::figure(uint32_t rank, size_t index) { return shared_->figures[rank][index]; }

double Stage::MostOf(size_t index) const {
  double most = 0;
  for (uint32_t r = 0; r < ranks_; ++r) most = std::max(most, shared_->figures[r][index]);
  return most;
}

double Stage::MedianOfMost(size_t count) const {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) values.push_back(MostOf(i));
  return Median(values);
}

bool OnRanks(Stage& stage, const std::function<Status(uint32_t rank)>& run) {
  std::vector<pid_t> processes;
  std::fflush(nullptr);
  for (uint32_t r = 0; r < stage.ranks(); ++r) {
    const pid_t process = fork();
    if (process == 0) {
      cpu_set_t cores;
      CPU_ZERO(&cores);
      CPU_SET(r % std::max(1u, std::thread::hardware_concurrency()), &cores);
      sched_setaffinity(0, sizeof cores, &cores);
      const Status status = run(r);
      if (!status.ok()) std::fprintf(stderr, "rank %u: %s\n", r, status.message().c_str());
      std::fflush(nullptr);
      _exit(status.ok() ? 0 : 1);
    }
    processes.push_back(process);
  }
  bool good = true;
  for (size_t left = processes.size(); left > 0; --left) {
    int status = 0;
    const pid_t ended = wait(&status);
    std::erase(processes, ended);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    // The others would wait for the failed one.
    good = false;
    for (const pid_t process : processes) kill(process, SIGKILL);
  }
  return good;
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "dispatch-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}
Folder::~Folder() { std::filesystem::remove_all(path_); }

Member Folder::MemberOf(uint32_t rank) const {
  // Names sort in the order of ranks.
  char name[16];
  std::snprintf(name, sizeof name, "r%03u", rank);
  return {{name, 1}, "here", "unix:" + path_ + "/" + name, "", ""};
}

std::shared_ptr<const Routes> RoutesFor(uint32_t rank, uint32_t ranks, uint32_t experts) {
  dispatch::testing::Layout layout(ranks, experts);
  std::vector<dispatch::testing::Placed> placed;
  for (uint32_t e = 0; e < experts; ++e) placed.push_back({{{e * ranks / experts, 0, 1}}});
  layout.AddLayer(placed);
  auto routes = Routes::Of(layout.Maps(rank), layout.model());
  return routes.ok() ? std::make_shared<const Routes>(std::move(*routes)) : nullptr;
}

Result<std::unique_ptr<Buffer>> Enter(const Folder& folder, uint32_t rank, uint32_t ranks,
                                      const BufferOptions& options) {
  auto buffer = Buffer::Create(folder.MemberOf(rank), options, net::Credentials::Insecure());
  if (!buffer.ok()) return buffer.status();
  std::vector<Member> members;
  std::vector<MemberId> ids;
  for (uint32_t r = 0; r < ranks; ++r) {
    members.push_back(folder.MemberOf(r));
    ids.push_back(members.back().id);
  }
  TANGRAM_RETURN_IF_ERROR((*buffer)->Prepare(members, std::chrono::seconds(120)));
  TANGRAM_RETURN_IF_ERROR(
      (*buffer)->UpdateMembers(1, ids, RoutesFor(rank, ranks, options.format.experts)));
  return buffer;
}

Drawn Draw(const Format& format, uint32_t tokens, uint32_t seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal;
  Drawn out;
  // A few thousand different numbers: drawing all of them would take longer than the bench.
  std::vector<uint16_t> some(4099);
  for (uint16_t& half : some) {
    const float value = normal(draw);
    Convert(Element::kF32, &value, 1, Element::kBf16, &half);
  }
  out.x.resize(size_t{tokens} * format.hidden);
  for (size_t i = 0; i < out.x.size(); ++i) out.x[i] = some[i % some.size()];
  for (uint32_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> mine;
    while (mine.size() < format.top_k) {
      const auto e = static_cast<int32_t>(draw() % format.experts);
      if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    }
    out.experts.insert(out.experts.end(), mine.begin(), mine.end());
    for (uint32_t k = 0; k < format.top_k; ++k)
      out.weights.push_back(1.0f / static_cast<float>(format.top_k));
  }
  out.rows = {tokens, out.x.data(), out.experts.data(), out.weights.data()};
  return out;
}

double Seconds(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) { return Quantile(std::move(values), .5); }

double Quantile(std::vector<double> values, double quantile) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(quantile * static_cast<double>(values.size())))];
}

}  // namespace tangram::dispatch::bench
