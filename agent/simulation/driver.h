// A driver of the simulated world, after operator/internal/driver: moves the world from layout to
// layout, aborts, ends attempts of other drivers, fences and repairs. Its fibers may die at any
// point; two drivers may run concurrently.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/attempt/types.h"
#include "agent/simulation/fibers.h"
#include "agent/simulation/records.h"
#include "agent/simulation/truth.h"
#include "agent/transition/executor.h"

namespace tangram::simulation {

class World;
class Agent;

class Driver {
 public:
  explicit Driver(World* world);

  void Start();  // and drives the world until it is killed
  void Kill();
  int process() const { return process_; }
  // Begins nothing new, except one last flip after which each rank holds only its layout's pieces.
  void Settle() { settling_ = true; }
  bool settled() const { return settled_; }

 private:
  enum class Call { kDone, kRefused, kAway };
  struct Flip {
    Flip() = default;
    Flip(attempt::Kind of, v1::Layout to, uint64_t version = 0)
        : kind(of), target(std::move(to)), fence_version(version) {}

    attempt::Kind kind = attempt::Kind::kUnspecified;
    v1::Layout target;
    std::vector<v1::Layout> follow;  // under the same permit: a run
    uint64_t fence_version = 0;      // of a repair
    std::string hash;
    Members before, after, members;
    std::vector<size_t> agents;
    v1::Header header, last;  // of a run's last flip
    bool repairs() const { return kind == attempt::Kind::kRepair; }
  };

  void Keep();
  bool Change(const Truth& truth);
  std::optional<Truth> Observe();
  Statuses AskAll();

  // flip.cc
  bool Run(const Truth& truth, Flip flip);
  bool UntilStaged(const Truth& truth, const Flip& flip);
  bool MayPermit(const Flip& flip);
  bool PermitAll(const Truth& truth, const Flip& flip);
  bool UntilFlipped(const Truth& truth, const Flip& flip);
  bool RetireAll(const Flip& flip, const std::vector<size_t>& agents);
  void End(const Leftover& left);
  // Members first. True: some agent flipped. None: unknown.
  std::optional<bool> AbortInOrder(const Truth& truth, const std::vector<size_t>& agents,
                                   const v1::Header& header);
  bool Broken(const Flip& flip, const Statuses& statuses) const;
  // `first`: the hash of an aborted first layout; else empty.
  bool Burn(uint64_t attempt, const std::string& first);
  bool Unfound(uint64_t attempt, const std::string& hash);

  // driver_run.cc
  static v1::Header HeaderIn(const Flip& flip, size_t place);
  std::vector<v1::Layout> Onward(const v1::Layout& first, size_t flips);
  void AddRun(const Truth& truth, const Flip& flip, std::map<size_t, v1::PrepareRequest>* requests);
  bool Walk(const Flip& flip);
  bool EndRun(const std::vector<size_t>& agents, const v1::Header& first, const v1::Header& last);
  bool EndRuns(const Truth& truth);

  // repair.cc
  void Repair();
  std::optional<std::pair<Truth, Ruling>> Still();
  bool Resolve(const Truth& truth, const Fence& fence);
  void Hold(const Truth& truth, const Ruling& ruling);
  void EndWorld(const Truth& truth, const Members& lost);
  bool Release(const Truth& truth, bool ends);  // true: some rank was released

  // Records, over the network.
  template <typename Value>
  Record<Value> Load(const Record<Value>& record);
  template <typename Value>
  bool Save(Record<Value>* record, uint64_t version, const Value& next);

  // One call to each, concurrently; returns the results.
  std::vector<Call> Each(const std::vector<size_t>& agents, const char* name,
                         const std::function<Status(Executor&, size_t)>& call);
  Status One(size_t agent, const char* name, const std::function<Status(Executor&)>& call);
  Agent* At(size_t agent) const;

  World* const world_;
  const int process_;
  bool settling_ = false, settled_ = false;
};

}  // namespace tangram::simulation
