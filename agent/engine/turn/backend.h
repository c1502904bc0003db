// The interface of an engine: requests, KV and computing. The step loop (turn.h) has the rest,
// which is the same for every engine: votes, gate, flips, repair, connections, gateways.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "agent/client/include/tangram/client.h"
#include "agent/engine/mesh/communicator.h"
#include "agent/engine/turn/side.h"
#include "agent/engine/wire/bytes.h"
#include "tangram/v1/serve.pb.h"

namespace tangram::engine {

// The active epoch.
struct Epoch {
  const tg_maps* maps = nullptr;  // of the client library
  Side side;
  uint32_t rank = 0;
  uint64_t number() const { return maps->epoch; }
};

// The state that an epoch begins with.
enum class Entry {
  kEmpty,    // none: this rank was in no world
  kKept,     // all KV and requests: attention is unchanged
  kCarried,  // the KV and requests that Plan and Bring prepared
  kRepaired  // the rest after a rank died: requests with lost KV are computed again
};

// Calls for a backend during a long computation on the step's thread.
class Between {
 public:
  virtual ~Between() = default;
  // Handles messages of agent and peers, without waiting, and sends waiting peers a heartbeat if
  // one is due. Errors as of MayEmit, or an error that ends this rank.
  virtual Status Answer() = 0;
  // Sends waiting peers a heartbeat. kUnavailable: they no longer wait for this rank, because one
  // disconnected or this rank was removed. The flip will not happen.
  virtual Status Lives() = 0;
  // Called after the whole step is computed. kUnavailable: this rank is stopped and was removed, so
  // its results may come from released memory.
  virtual Status MayEmit() = 0;
  // An event waits for the end of this step (a permit, a flip, a lost peer). A backend that
  // computes nothing more and only waits for a clock must return. True for at most a few steps of
  // an attempt.
  virtual bool Hurries() = 0;
};

struct StepInput {
  const Epoch& epoch;
  uint64_t step = 0;
  uint64_t rows = 0;   // of all ranks
  Communicator& comm;  // sequences: kFirstSequence and up
  Between& between;
};

constexpr uint32_t kNoRank = UINT32_MAX;

// Only the step loop's thread calls these. kUnavailable from Compute: a peer is gone, the step is
// abandoned, and none of its tokens was emitted. Any other error ends the rank.
class Backend {
 public:
  virtual ~Backend() = default;

  // Takes a request. A rejection goes to the sink, with the reason.
  virtual void Submit(const std::string& gateway, v1::Submit submit) = 0;
  // Frees all resources of the request; false: it is not here.
  virtual bool Cancel(const std::string& request) = 0;
  // The requests that are here, by gateway.
  virtual std::map<std::string, v1::Roster> Rosters() const = 0;
  // The load reported to gateways and operator: all but step, which the loop fills in.
  virtual void Measure(v1::Load* load, tg_engine_stats* stats) = 0;
  // The maximum number of tokens of prompt and answer, and the vocabulary, for gateways.
  virtual uint32_t max_tokens() const = 0;
  virtual uint32_t vocabulary() const = 0;
  // The names of the fields of Submit from min_tokens on that are honoured. A request with another
  // one is rejected.
  virtual std::vector<std::string> can() const { return {}; }

  // Whether the target can be computed here. Called before it is prepared. `repair`: the target is
  // a repair, so accept it if at all possible.
  virtual Status Fits(const tg_maps& target, bool repair) = 0;

  // The announcement of this rank's next step to all ranks. `rows`: its tokens; `work`: a request
  // is to be computed here, or waits.
  struct Announcement {
    uint64_t rows = 0;
    bool work = false;
    Bytes text;
  };
  virtual Announcement Announce(uint64_t step) = 0;
  // Receives the announcements of all ranks, by rank. A flip may follow instead of Compute. On an
  // error the text of rank `*malformed` cannot be read, and the others continue without that rank.
  virtual Status Heard(const std::vector<Bytes>& texts, uint32_t* malformed) = 0;
  // Computes the step, at all ranks together; not called if no rank has rows. Emits to the sink
  // once no call can fail any more and MayEmit has succeeded.
  virtual Status Compute(const StepInput& input) = 0;
  // The step has ended. Not `computed`: steps pause, and the same rows are announced again.
  virtual void StepDone(bool computed) { (void)computed; }

  // First call of a flip that changes attention: the facts about requests and KV here that other
  // ranks need. `whole` is set when Plan returns that the first manifests are not enough.
  virtual Bytes Manifest(const Side& to, bool whole) = 0;
  // Plans the place of all KV from all ranks' manifests: a pure function, equal at all ranks.
  // kNoMemory: it does not fit now, at every rank; kNotHeld: it needs whole manifests. `moved`:
  // requests that change home. An error that sets `*malformed`, which is kNoRank before: the
  // manifest of that rank cannot be read.
  virtual Status Plan(const Side& from, const Side& to, bool whole,
                      const std::vector<Bytes>& manifests, uint64_t* moved,
                      uint32_t* malformed) = 0;
  // Fetches the planned KV of `rank` of the target, next to the active KV; returns bytes. Other
  // ranks wait, so send heartbeats while waiting for the agent (Between::Lives). kUnavailable:
  // memory is still being written and must not be used before an attempt ends, so this rank stops
  // until a repair. After any other error all ranks stay in the old layout.
  virtual Result<uint64_t> Bring(uint32_t rank, Between& between) = 0;
  // Discards the planned and fetched KV: the attempt has ended.
  virtual void Drop() = 0;

  // KV ahead of such a flip, if the backend supports it. An optimization; no other call relies on
  // it. `attempt` is prepared here. Until Unstage, computed KV may be copied to its place in `to`
  // while steps continue. Called once per attempt.
  virtual void Stage(uint64_t attempt, const Side& to) { (void)attempt, (void)to; }
  // Called at each boundary while it is staged, after the step. Begins and collects copies, and
  // waits for none. False: more KV remains than should be fetched in the flip.
  virtual bool Advance() { return true; }
  // The attempt has ended, or flipped. Frees the copies that the flip did not use.
  virtual void Unstage() {}
  // `epoch` is active from here on; it stays valid until the next Enter or Leave.
  virtual Status Enter(const Epoch& epoch, Entry entry) = 0;
  // This rank is in no world now: weights and requests are gone.
  virtual void Leave() = 0;
};

// Sequence numbers of a step's exchanges. Every rank counts the same, also in exchanges without it,
// so that a rank at another point is detected immediately.
constexpr uint64_t kControlSequence = 0;
constexpr uint64_t kFirstSequence = 1;  // of the backend
constexpr uint64_t kManifestSequence = 1ull << 32;
constexpr uint64_t kPulledSequence = kManifestSequence + 1;
constexpr uint64_t kWholeSequence = kManifestSequence + 2;

}  // namespace tangram::engine
