// Timeouts of a world that depend on each other, each with its upper bound. A waiting rank sends
// heartbeats. A rank without heartbeats times out.
//
// An engine may be started with other bounds of silence (Patience::Bounds). Agents do not know them
// and derive their timeouts from the defaults.
#pragma once

#include <chrono>

namespace tangram::limits {

using std::chrono::milliseconds;

// --- Intervals within waits: between two heartbeats, or two checks for a stop.
inline constexpr milliseconds kSlice{25};
inline constexpr milliseconds kStopLook{100};

// --- Exchanges of engines: maximum silence of a peer.
inline constexpr milliseconds kMinSilence{1'000};   // whatever was measured
inline constexpr milliseconds kMaxSilence{10'000};  // before anything was measured
// Multiples of kMinSilence, at least: for an unseen step size; for an exchange of a flip.
inline constexpr int kUnseenFactor = 2, kFlipFactor = 5;
inline constexpr milliseconds kMinFlipSilence = kFlipFactor * kMinSilence;
// Heartbeats of a waiting rank within the shortest silence.
inline constexpr int kHeartbeats = 4;
// An exchange of a step ends after this multiple of the longest silence, even with heartbeats.
inline constexpr int kStepFactor = 3;
inline constexpr milliseconds kMaxStep = kStepFactor * kMaxSilence;

// --- Bytes between agents: connection timeout, and maximum silence of a peer.
inline constexpr milliseconds kDataConnect{5'000};
inline constexpr milliseconds kDataSilence{20'000};
inline constexpr milliseconds kPeerCall{5'000};  // a call over gRPC

// --- The same for KV that a flip waits for.
inline constexpr milliseconds kKvOpen = 3 * kMinSilence / 4;  // the call that opens a pull
inline constexpr milliseconds kKvConnect = 3 * kMinSilence / 4;
inline constexpr milliseconds kKvSilence = 3 * kMinSilence / 4;
inline constexpr int kKvFailures = 2;  // per source
inline constexpr milliseconds kKvRetry{200};
// Time until a pull from an unresponsive source fails.
inline constexpr milliseconds kKvFails =
    kKvFailures * (kKvOpen + kKvConnect + kKvSilence) + (kKvFailures - 1) * kKvRetry;

// --- An engine waits for its agent and sends heartbeats to its peers.
inline constexpr milliseconds kKvPull = kMaxStep;  // a part of the KV, some 16 MiB

// --- An engine waits for its agent without heartbeats.
inline constexpr milliseconds kKvPullAll{120'000};  // all KV in one call (tg_kv_pull)
inline constexpr milliseconds kCommit{30'000};

// --- Preparation of an attempt: the engine connects to its peers; the agent waits for the engine.
inline constexpr milliseconds kPrepare{30'000};
inline constexpr milliseconds kEngineReply{60'000};  // prepare, map or unmap
// Wait of an engine before it unmaps, until its device has finished with the previous layout.
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
