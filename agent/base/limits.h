// The time limits of a world that depend on each other, each with what it must be shorter than. Who
// waits for a rank sends heartbeats; a rank that cannot be waited for is found by its silence.
//
// An engine may be started with other bounds of silence (Patience::Bounds). Agents do not know
// them: what they wait for is derived from the defaults.
#pragma once

#include <chrono>

namespace tangram::limits {

using std::chrono::milliseconds;

// --- Waiting in slices: between two heartbeats, or two looks whether a stop was asked for.
inline constexpr milliseconds kSlice{25};
inline constexpr milliseconds kStopLook{100};

// --- Exchanges of engines: how long a peer may be silent.
inline constexpr milliseconds kMinSilence{1'000};   // whatever was learned of steps
inline constexpr milliseconds kMaxSilence{10'000};  // until anything was learned
// In units of kMinSilence, at least: a step of a size that was not seen; an exchange of a flip.
inline constexpr int kUnseenFactor = 2, kFlipFactor = 5;
inline constexpr milliseconds kMinFlipSilence = kFlipFactor * kMinSilence;
// Heartbeats that a waiting rank sends in the shortest silence.
inline constexpr int kHeartbeats = 4;
// An exchange of a step ends after so many times the longest silence, also if all send heartbeats.
inline constexpr int kStepFactor = 3;
inline constexpr milliseconds kMaxStep = kStepFactor * kMaxSilence;

// --- Bytes between agents: until a connection is made, and how long a peer may be silent.
inline constexpr milliseconds kDataConnect{5'000};
inline constexpr milliseconds kDataSilence{20'000};
inline constexpr milliseconds kPeerCall{5'000};  // a call over gRPC

// --- The same for KV, for which a flip waits.
inline constexpr milliseconds kKvOpen = 3 * kMinSilence / 4;  // the call that opens a pull
inline constexpr milliseconds kKvConnect = 3 * kMinSilence / 4;
inline constexpr milliseconds kKvSilence = 3 * kMinSilence / 4;
inline constexpr int kKvFailures = 2;  // of a source
inline constexpr milliseconds kKvRetry{200};
// Until a pull from a source that answers nothing has failed.
inline constexpr milliseconds kKvFails =
    kKvFailures * (kKvOpen + kKvConnect + kKvSilence) + (kKvFailures - 1) * kKvRetry;

// --- An engine waits for its agent, with heartbeats to its peers.
inline constexpr milliseconds kKvPull = kMaxStep;  // a part of the KV, some 16 MiB

// --- An engine waits for its agent, without.
inline constexpr milliseconds kKvPullAll{120'000};  // all KV in one call (tg_kv_pull)
inline constexpr milliseconds kCommit{30'000};

// --- An attempt's preparation: the engine connects to its peers; the agent waits for the engine.
inline constexpr milliseconds kPrepare{30'000};
inline constexpr milliseconds kEngineReply{60'000};  // prepare, map or unmap
// Before it unmaps, an engine waits for its device to finish with the layout before the flip.
inline constexpr milliseconds kDeviceUse{45'000};

static_assert(kHeartbeats * kSlice <= kMinSilence / kHeartbeats,
              "a heartbeat is due less often than a waiting rank looks");
static_assert(kStopLook < kMinSilence / kHeartbeats, "a stop is slower than a heartbeat");
static_assert(kKvOpen < kMinSilence && kKvConnect < kMinSilence && kKvSilence < kMinSilence,
              "a source of KV is given up before its reader could be");
static_assert(kMinSilence < kMinFlipSilence && kMinFlipSilence <= kMaxSilence);
static_assert(kKvFails < kMinFlipSilence,
              "peers wait longer in a flip than a pull needs to fail: they hear of it, and stay");
static_assert(kKvFails < kKvPull && kKvPull < kKvPullAll,
              "the agent tells that a pull failed before its engine leaves it");
static_assert(kKvSilence < kDataSilence && kKvConnect <= kDataConnect && kKvOpen <= kPeerCall);
static_assert(kMaxSilence <= kCommit && kPrepare < kEngineReply);
static_assert(
    kMaxStep < kDeviceUse && kDeviceUse < kEngineReply,
    "a step may take its time; a device that hangs ends its engine, not the agent's wait");

}  // namespace tangram::limits
