// Combines the agents' replies with the record and draws conclusions: which members survive, and
// the outcome of an unfinished attempt. Pure; after operator/internal/driver (truth.go, scene.go,
// survivors.go, verdict.go) and docs/architecture.md, section 8, "Fence".
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/simulation/plan.h"
#include "agent/simulation/records.h"
#include "tangram/v1/agent.pb.h"

namespace tangram::simulation {

using Statuses = std::vector<std::optional<v1::StatusResponse>>;  // by agent; none: no answer

struct Leftover {
  uint64_t attempt = 0, target_epoch = 0;
  std::string target_hash;
  bool any_flipped = false;
  std::vector<size_t> agents;
};

struct Ruling {
  bool running = false, unknown = false;  // work may be in progress; an agent is unknown
  bool made = false, forward = false;
  uint64_t from_epoch = 0, stand_on = 0;
  Members survivors, lost;
};

class Truth {
 public:
  explicit Truth(Record<Membership> record, Statuses statuses);

  const v1::Layout* layout() const { return layout_; }
  const v1::Layout* older() const { return older_; }
  const std::string& hash() const { return hash_; }
  uint64_t epoch() const { return layout_ == nullptr ? 0 : layout_->epoch(); }
  const Record<Membership>& record() const { return record_; }
  const Statuses& statuses() const { return *statuses_; }
  bool contradiction() const { return contradiction_; }
  uint64_t highest() const;

  struct Rank {
    size_t agent = 0;
    const v1::RankStatus* status = nullptr;
  };
  const Rank* RankOf(const std::string& member) const;
  uint64_t EpochOf(const Rank& rank) const;
  Members MembersOf(const v1::Layout* layout) const;
  // Indexes of the agents with a member of one of these layouts; those without a rank in the active
  // layout come first.
  std::vector<size_t> AgentsOf(const std::vector<const v1::Layout*>& layouts) const;
  bool Joins(size_t agent) const;
  Inventories Held() const;

  // Whether members of the active layout are lost or stopped.
  bool Trouble() const;
  Ruling Rule() const;
  // Pairs of members that report no connection, for a caller that waits until this settles.
  std::set<std::string> Apart() const;
  // An unfinished attempt.
  std::optional<Leftover> Left() const;
  // The attempt that a ruling decides, and whether a survivor may still flip by other votes.
  uint64_t AttemptOf(const Ruling& ruling) const;
  bool Open(const Ruling& ruling) const;
  // Whether some ranks of its agent have flipped and others have not.
  bool HalfFlipped(const Rank& rank) const;
  std::string HashOf(const Ruling& ruling) const;
  // Ranks of an agent that are to be released.
  Members MustGo(size_t agent) const;
  bool Believed(size_t agent) const { return believed_[agent]; }

 private:
  struct Evidence {
    bool answers = false, gone = false, attached = false, stopped = false, fresh = false;
    uint64_t epoch = 0, attempt = 0, leads = 0;
    v1::Phase phase = v1::PHASE_UNSPECIFIED;
    std::set<std::string> unreachable;
  };
  struct Scene {
    uint64_t epoch = 0;
    Members newest, older;
    std::map<std::string, Evidence> members;
    const Fence* fence = nullptr;
  };
  Scene SceneNow() const;
  bool Believes(const v1::StatusResponse& status) const;
  bool LeftBy(const v1::StatusResponse& status) const;
  bool Gone(const std::string& member) const;

  Record<Membership> record_;
  std::shared_ptr<const Statuses> statuses_;  // owns the layouts and statuses that others point to
  std::vector<bool> believed_;
  const v1::Layout* layout_ = nullptr;
  const v1::Layout* older_ = nullptr;
  std::string hash_;
  bool contradiction_ = false;
  std::map<std::string, Rank> ranks_;
};

bool Unfinished(const v1::RankStatus& rank);
bool Contains(const Members& members, const std::string& id);

}  // namespace tangram::simulation
