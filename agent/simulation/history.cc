#include "agent/simulation/history.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

#include "agent/simulation/driver.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

constexpr Nanos kSettles = 240 * kSecond;
constexpr size_t kFewestPods = 2;

class History {
 public:
  explicit History(uint64_t seed) : time_(seed) {}

  Played Run(bool trace, bool shown) {
    Played played;
    {
      World world(&time_, time_.dice().OneIn(4) ? 2 : 1);
      world_ = &world;
      world.checker.tracing = trace;
      world.checker.shown.wanted = shown;
      const uint64_t pods = kFewestPods + dice().Below(3);
      for (uint64_t pod = 0; pod < pods; ++pod) world.AddPod();
      bool over = false;
      time_.Spawn(kNature, "nature", [&] {
        Nature();
        over = true;
      });
      if (!time_.Run([&] { return over || !world.checker.wrong.empty(); })) {
        world.checker.Wrong("NEVER_STUCK", "nothing goes on");
      }
      played.seconds = static_cast<double>(time_.now()) / kSecond;
      time_.after_turn = nullptr;
      played.wrong = world.checker.wrong;
      played.trace = std::move(world.checker.trace);
      world.checker.shown.End();
      played.shown = std::move(world.checker.shown.parts);
      played.reached = std::move(world.checker.reached);
    }
    drivers_.clear();
    played.turns = time_.turns();
    return played;
  }

 private:
  Dice& dice() { return time_.dice(); }
  void Pause(Nanos most) { time_.Sleep(dice().Between(kMillisecond, most)); }

  Driver& AddDriver() {
    drivers_.push_back(std::make_unique<Driver>(world_));
    running_.push_back(drivers_.back().get());
    running_.back()->Start();
    return *running_.back();
  }
  void KillDriver() {
    if (running_.empty()) return;
    running_.front()->Kill();
    running_.erase(running_.begin());
  }

  void Nature() {
    AddDriver();
    Pause(4 * kSecond);
    for (uint64_t left = 1 + dice().Below(6); left > 0; --left) {
      if (dice().OneIn(4)) {
        KillDriver();
      } else {
        Fault();
      }
      while (running_.size() < 1 + dice().Below(2)) AddDriver();
      Pause(3 * kSecond);
    }
    while (!running_.empty()) KillDriver();
    Pause(4 * kSecond);
    world_->Heal();
    for (const auto& agent : world_->agents) {
      for (const auto& engine : agent->engines) engine->Hang(0);
    }
    Driver& last = AddDriver();
    last.Settle();
    const Nanos until = time_.now() + kSettles;
    while (!last.settled() && time_.now() < until) time_.Sleep(100 * kMillisecond);
    if (!last.settled()) {
      return world_->checker.Wrong("NEVER_STUCK", "the world does not come to rest as wanted");
    }
    time_.Sleep(kSecond);  // delayed calls of dead drivers end, too
    last.Kill();
    time_.Sleep(2 * kSecond);
    world_->checker.LookAtRest();
    LookAtSteps();
  }

  // All engines in a layout must step.
  void LookAtSteps() {
    std::map<Engine*, uint64_t> before;
    for (const auto& agent : world_->agents) {
      for (const auto& engine : agent->engines) {
        if (engine->epoch() != 0) before[engine.get()] = engine->steps();
      }
    }
    time_.Sleep(2 * kSecond);
    if (before.empty()) world_->checker.Wrong("NEVER_STUCK", "nobody is in a layout");
    for (const auto& [engine, steps] : before) {
      if (engine->steps() > steps) continue;
      world_->checker.Wrong("NEVER_STUCK", engine->member() + " does not step");
    }
  }

  std::vector<Agent*> Living() const {
    std::vector<Agent*> out;
    for (const auto& agent : world_->agents) {
      if (agent->alive) out.push_back(agent.get());
    }
    return out;
  }

  // One fault, which heals after a while.
  void Fault() {
    const std::vector<Agent*> living = Living();
    Agent* one = living[dice().Below(living.size())];
    Agent* other = living[dice().Below(living.size())];
    Engine* engine = one->engines[dice().Below(one->engines.size())].get();
    const Nanos lasts = dice().Between(50 * kMillisecond, 6 * kSecond);
    const auto later = [&](std::function<void()> heal) {
      time_.Spawn(kNature, "nature", [this, lasts, heal = std::move(heal)] {
        time_.Sleep(lasts);
        heal();
      });
    };
    const auto note = [&](const char* what, const std::string& whom) {
      ++world_->checker.reached[what];
      world_->checker.Trace(fmt::format("nature: {} {} for {:.3f} s", what, whom,
                                        static_cast<double>(lasts) / kSecond));
    };
    switch (dice().Below(6)) {
      case 0:
        if (living.size() <= kFewestPods) {
          (void)world_->AddPod();
          return;
        }
        note("a pod dies:", one->pod);
        world_->checker.Failed({one->pod});
        world_->KillPod(one);
        return later([this] { (void)world_->AddPod(); });
      case 1:
        note("an engine dies:", engine->member());
        world_->checker.Failed({one->pod});
        return engine->Kill();
      case 2:
        note("an engine hangs:", engine->member());
        world_->checker.shown.Disturbed(time_.now() + lasts);
        world_->checker.Failed({one->pod});
        return engine->Hang(time_.now() + lasts);
      case 3:
        if (one == other) return;
        note("pods are cut:", one->pod + " " + other->pod);
        world_->checker.shown.Disturbed(time_.now() + lasts);
        world_->checker.Failed({one->pod, other->pod});
        world_->SetCut(one->number, other->number, true);
        return later([this, one, other] { world_->SetCut(one->number, other->number, false); });
      case 4:
        if (running_.empty()) return;
        note("a driver does not see:", one->pod);
        world_->checker.shown.Disturbed(time_.now() + lasts);
        world_->checker.Failed({one->pod});  // the driver takes the pod for dead
        world_->SetHidden(one->number, running_.back()->process(), true);
        return later([this, one, driver = running_.back()->process()] {
          world_->SetHidden(one->number, driver, false);
        });
      default:
        note("another driver", "");
        (void)AddDriver();
    }
  }

  Scheduler time_;
  World* world_ = nullptr;
  std::vector<std::unique_ptr<Driver>> drivers_;  // also the dead
  std::vector<Driver*> running_;
};

}  // namespace

Played Play(uint64_t seed, bool trace, bool shown) {
  (void)Model::Get();
  static const auto silent = [] {
    spdlog::set_level(spdlog::level::off);
    return true;
  }();
  (void)silent;
  return History(seed).Run(trace, shown);
}

}  // namespace tangram::simulation
