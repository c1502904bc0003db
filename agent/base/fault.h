// Named fault points, off in every process that was not started with --faults or --fault-dir: the
// environment, which a pod's owner may set, turns nothing on. Production code pays one relaxed
// load. `--faults` arms points by name, e.g.
//   --faults stage.after_fetch=kill@3,flip.before_commit=error
// action[@n]: at the n-th pass (default 1): error (the call fails), kill (SIGKILL to this process),
// delay:<ms>, corrupt (the caller flips a byte). A point says whether it takes error and corrupt.
//
// With `--fault-dir <dir>` a test acts on others while this process stands at a point: each point
// that is passed leaves <dir>/<point>.seen; while <dir>/<point>.armed is there, the first pass
// leaves <dir>/<point>.hit and waits until `.armed` is gone, or holds an action, which is done
// then. While <dir>/<point>.always holds an action, every pass does it. Links with the peers that
// <dir>/cut names, one a line, are cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/base/status.h"

namespace tangram::fault {

enum class Action { kNone, kError, kCorrupt };

// What a point's caller acts on; kill and delay need nobody.
enum Takes : unsigned { kNothing = 0, kErrors = 1, kCorruption = 2 };

// Declares the point and runs what is armed for it. kill and delay happen inside.
Action Hit(std::string_view point);

// Hit() as a Status: kError becomes kInternal "fault point <name>".
Status Check(std::string_view point);

// Whether the link with this peer is cut.
bool Cut(std::string_view peer);

// Follows a directory from now on; empty: none.
void Follow(const std::string& dir);

// Replaces what is armed; the syntax of --faults. Unknown names are refused, and actions that the
// point does not take.
Status Arm(std::string_view spec);

// Every point this program has, sorted.
std::vector<std::string> List();

// The same, each followed by what it takes: "stage.after_fetch error corrupt"
// (--list-fault-points).
std::vector<std::string> Describe();

// Static registration, so that List() knows points that were never passed.
struct Point {
  explicit Point(std::string_view name, unsigned takes = kNothing);
};

}  // namespace tangram::fault
