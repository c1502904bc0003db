// What an engine brings: requests, KV and computing. The turn (turn.h) has the rest, which is the
// same for every engine: words, gate, flips, repair, connections, gateways.
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

// The epoch in force.
struct Epoch {
  const tg_maps* maps = nullptr;  // of the client library
  Side side;
  uint32_t rank = 0;
  uint64_t number() const { return maps->epoch; }
};

// Whose KV and requests an epoch begins with.
enum class Entry {
  kEmpty,    // this rank was in no world
  kKept,     // attention is as it was: all that there is stays
  kCarried,  // what Plan and Bring made ready
  kRepaired  // what is left after somebody died: requests whose KV is gone are computed again
};

// What is under way on the step's thread beside computing, for who computes long.
class Between {
 public:
  virtual ~Between() = default;
  // Answers agent and peers, without waiting, and tells those that wait that this rank lives if
  // that is due. Errors as of MayEmit, or this rank's end.
  virtual Status Answer() = 0;
  // Tells those that wait for this rank that it lives. kUnavailable: they do not wait any more,
  // since one hung up, or this rank was left out: the flip is in vain.
  virtual Status Lives() = 0;
  // Asked when all is computed. kUnavailable: this rank stands still and was left out, so that what
  // it computed may come from memory that has gone.
  virtual Status MayEmit() = 0;
  // Something waits for the end of this step (a permit that came, a flip, a peer that is gone).
  // Who computes nothing any more but waits for a clock shall stop. Told for a few steps of an
  // attempt at most.
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

// Called by the turn's thread alone. A Status of kUnavailable from Compute: a peer is gone, the
// step is given up, and nothing of it was emitted. Any other error ends the rank.
class Backend {
 public:
  virtual ~Backend() = default;

  // A request; why not is told to the sink.
  virtual void Submit(const std::string& gateway, v1::Submit submit) = 0;
  // Frees all that the request has; false when it is not here.
  virtual bool Cancel(const std::string& request) = 0;
  // By gateway, the requests that are here.
  virtual std::map<std::string, v1::Roster> Rosters() const = 0;
  // What gateways and operator hear of this rank: all but step, which the turn knows.
  virtual void Measure(v1::Load* load, tg_engine_stats* stats) = 0;
  // Most tokens of prompt and answer, and the vocabulary, for gateways.
  virtual uint32_t max_tokens() const = 0;
  virtual uint32_t vocabulary() const = 0;
  // Fields of Submit from min_tokens on that are honoured, by name. What asks for another is
  // refused.
  virtual std::vector<std::string> can() const { return {}; }

  // Can the target be computed here? Before it is prepared; `repair`: it has to be, if at all.
  virtual Status Fits(const tg_maps& target, bool repair) = 0;

  // What this rank computes in the next step, for all others to hear. `rows`: tokens of it; `work`:
  // something is to be done here, or waits.
  struct Announcement {
    uint64_t rows = 0;
    bool work = false;
    Bytes text;
  };
  virtual Announcement Announce(uint64_t step) = 0;
  // What all ranks announced, by rank. A flip may follow instead of Compute. An error: the text of
  // rank `*malformed` cannot be read, and the others go on without that rank.
  virtual Status Heard(const std::vector<Bytes>& texts, uint32_t* malformed) = 0;
  // The step, at all ranks at once; not called if no rank has rows. Emits to the sink once nothing
  // can fail any more and MayEmit was asked.
  virtual Status Compute(const StepInput& input) = 0;
  // The step is over. Not `computed`: steps pause, and what was announced is announced again.
  virtual void StepDone(bool computed) { (void)computed; }

  // A flip that changes attention. What the others must know of the requests and KV here. They are
  // asked for the `whole` of it when Plan says that what they told first is not enough.
  virtual Bytes Manifest(const Side& to, bool whole) = 0;
  // Where all of it goes, from what all ranks told: a pure function, equal at all ranks. kNoMemory:
  // it does not fit now, and every rank finds so; kNotHeld: it takes the whole. `moved`: requests
  // that change home. An error that sets `*malformed`, which is kNoRank before: the manifest of
  // that rank cannot be read.
  virtual Status Plan(const Side& from, const Side& to, bool whole,
                      const std::vector<Bytes>& manifests, uint64_t* moved,
                      uint32_t* malformed) = 0;
  // Brings what the plan gives to `rank` of the target, beside what is in force; others wait, so
  // that who waits for its agent sends heartbeats (Between::Lives). Bytes. kUnavailable: something
  // is written to still that must not be used before an attempt ends: this rank stands still until
  // a repair. After any other error all stay as they are.
  virtual Result<uint64_t> Bring(uint32_t rank, Between& between) = 0;
  // What was planned and brought is not needed: the attempt is over.
  virtual void Drop() = 0;

  // KV ahead of such a flip, for who has it; all of this is a saving, and nothing relies on it.
  // `attempt` is prepared here: until Unstage, what was computed may be copied to where `to` wants
  // it, while steps go on. Told once.
  virtual void Stage(uint64_t attempt, const Side& to) { (void)attempt, (void)to; }
  // At each boundary while it is staged, after the step. Begins and takes up copies, and waits for
  // none. False: more is left than shall be brought in the flip.
  virtual bool Advance() { return true; }
  // The attempt is over, or flipped. What was copied and not carried is given back.
  virtual void Unstage() {}
  // `epoch` is in force from here on; it stays valid until the next Enter or Leave.
  virtual Status Enter(const Epoch& epoch, Entry entry) = 0;
  // Out of every world: weights and requests are gone.
  virtual void Leave() = 0;
};

// Sequence numbers of a step's exchanges. Every rank counts the same, also where it takes no
// part, so that a rank in another stage is noticed at once.
constexpr uint64_t kControlSequence = 0;
constexpr uint64_t kFirstSequence = 1;  // of the backend
constexpr uint64_t kManifestSequence = 1ull << 32;
constexpr uint64_t kPulledSequence = kManifestSequence + 1;
constexpr uint64_t kWholeSequence = kManifestSequence + 2;

}  // namespace tangram::engine
