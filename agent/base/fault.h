// Named fault points. A test arms a point by name; production code pays one
// relaxed load while none is armed. Armed through TANGRAM_FAULTS, e.g.
//   TANGRAM_FAULTS="stage.after_fetch=kill@3,flip.before_commit=error"
// action[@n]: at the n-th pass (default 1): error (the call fails), kill (SIGKILL
// to this process), delay:<ms>, corrupt (the caller flips a byte).
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

// Replaces what is armed; same syntax as TANGRAM_FAULTS. Unknown names are refused.
Status Arm(std::string_view spec);

// Every point this program has, sorted (for --list-fault-points).
std::vector<std::string> List();

// Static registration, so that List() knows points that were never passed.
struct Point {
  explicit Point(std::string_view name);
};

}  // namespace tangram::fault
