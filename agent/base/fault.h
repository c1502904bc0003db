// Named fault points. They are off unless the process starts with --faults or --fault-dir; no
// environment variable, which a pod's owner may set, turns them on. Production code pays one
// relaxed load. `--faults` arms points by name, e.g.
//   --faults stage.after_fetch=kill@3,flip.before_commit=error
// action[@n]: at the n-th pass (default 1): error (the call fails), kill (SIGKILL to this process),
// delay:<ms>, corrupt (the caller flips a byte). A point says whether it takes error and corrupt.
//
// With `--fault-dir <dir>` a test can act on other processes while this one waits at a point. Each
// passed point creates <dir>/<point>.seen. While <dir>/<point>.armed exists, the first pass creates
// <dir>/<point>.hit and waits until `.armed` is removed or contains an action, which it then does.
// While <dir>/<point>.always contains an action, every pass does it. Links with the peers in
// <dir>/cut (one per line) are cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/base/status.h"

namespace tangram::fault {

enum class Action { kNone, kError, kCorrupt };

// The actions that a point's caller handles. kill and delay need no handling.
enum Takes : unsigned { kNothing = 0, kErrors = 1, kCorruption = 2 };

// Passes the point and does its armed action. kill and delay happen inside.
Action Hit(std::string_view point);

// Hit() as a Status: kError becomes kInternal "fault point <name>".
Status Check(std::string_view point);

// Whether the link with this peer is cut.
bool Cut(std::string_view peer);

// Uses this --fault-dir from now on; empty: none.
void Follow(const std::string& dir);

// Replaces the armed actions; the syntax of --faults. Rejects unknown names, and actions that the
// point does not take.
Status Arm(std::string_view spec);

// Names of all points of this program, sorted.
std::vector<std::string> List();

// The same, each with the actions that it takes: "stage.after_fetch error corrupt"
// (--list-fault-points).
std::vector<std::string> Describe();

// Static registration, so that List() knows points that were never passed.
struct Point {
  explicit Point(std::string_view name, unsigned takes = kNothing);
};

}  // namespace tangram::fault
