// Named fault points. A test arms a point by name; production code pays one
// relaxed load while none is armed. Armed through TANGRAM_FAULTS, e.g.
//   TANGRAM_FAULTS="stage.after_fetch=kill@3,flip.before_commit=error"
// action[@n]: at the n-th pass (default 1): error (the call fails), kill (SIGKILL
// to this process), delay:<ms>, corrupt (the caller flips a byte).
//
// With TANGRAM_FAULT_DIR=<dir> a test acts on others while this process stands at a point: each
// point that is passed leaves <dir>/<point>.seen; while <dir>/<point>.armed is there, the first
// pass leaves <dir>/<point>.hit and waits until `.armed` is gone. Links with the peers that
// <dir>/cut names, one a line, are cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/base/status.h"

namespace tangram::fault {

enum class Action { kNone, kError, kCorrupt };

// Declares the point and runs what is armed for it. kill and delay happen inside.
Action Hit(std::string_view point);

// Hit() as a Status: kError becomes kInternal "fault point <name>".
Status Check(std::string_view point);

// Whether the link with this peer is cut.
bool Cut(std::string_view peer);

// Follows a directory from now on; empty: none.
void Follow(const std::string& dir);

// Arms TANGRAM_FAULTS and follows TANGRAM_FAULT_DIR, where they are set.
Status FromEnvironment();

// Replaces what is armed; same syntax as TANGRAM_FAULTS. Unknown names are refused.
Status Arm(std::string_view spec);

// Every point this program has, sorted (for --list-fault-points).
std::vector<std::string> List();

// Static registration, so that List() knows points that were never passed.
struct Point {
  explicit Point(std::string_view name);
};

}  // namespace tangram::fault
