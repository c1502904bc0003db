#include "agent/base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace tangram::fault {
namespace {

enum class Kind { kError, kCorrupt, kKill, kDelay };

struct Armed {
  Kind kind;
  int pass;      // fires at this pass
  int delay_ms;  // kDelay
};

struct Registry {
  std::mutex mu;
  std::map<std::string, unsigned, std::less<>> points;  // actions that each takes
  std::map<std::string, Armed, std::less<>> armed;
  std::map<std::string, int, std::less<>> passes;
};

Registry& Reg() {
  static auto* registry = new Registry;  // outlives every thread
  return *registry;
}

std::atomic<bool> g_any{false};
std::atomic<bool> g_dir{false};

// The directory of --fault-dir; written once, before g_dir is set.
std::filesystem::path& Dir() {
  static auto* dir = new std::filesystem::path;
  return *dir;
}

bool Exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Creates a file; false: another process did.
bool Make(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "wx");
  if (file == nullptr) return false;
  (void)std::fclose(file);  // it is empty
  return true;
}

Status Parse(std::string_view item, std::string* name, Armed* out) {
  const auto bad = [&](std::string_view why) {
    return Status(Code::kInvalid, "fault spec '" + std::string(item) + "': " + std::string(why) +
                                      "; must be point=error|corrupt|kill|delay:<ms>[@pass]");
  };
  const size_t eq = item.find('=');
  if (eq == std::string_view::npos) return bad("no '='");
  *name = std::string(item.substr(0, eq));
  std::string_view action = item.substr(eq + 1);
  out->pass = 1;
  out->delay_ms = 0;
  if (const size_t at = action.find('@'); at != std::string_view::npos) {
    const std::string_view n = action.substr(at + 1);
    const auto [end, err] = std::from_chars(n.data(), n.data() + n.size(), out->pass);
    if (err != std::errc() || end != n.data() + n.size() || out->pass < 1)
      return bad("bad pass number");
    action = action.substr(0, at);
  }
  if (action == "error") {
    out->kind = Kind::kError;
  } else if (action == "corrupt") {
    out->kind = Kind::kCorrupt;
  } else if (action == "kill") {
    out->kind = Kind::kKill;
  } else if (action.starts_with("delay:")) {
    out->kind = Kind::kDelay;
    const std::string_view ms = action.substr(6);
    const auto [end, err] = std::from_chars(ms.data(), ms.data() + ms.size(), out->delay_ms);
    if (err != std::errc() || end != ms.data() + ms.size()) return bad("bad delay");
  } else {
    return bad("unknown action");
  }
  return OkStatus();
}

// Whether the point's caller can act on it.
bool Taken(unsigned takes, Kind kind) {
  return (kind != Kind::kError || (takes & kErrors) != 0) &&
         (kind != Kind::kCorrupt || (takes & kCorruption) != 0);
}

unsigned TakesOf(std::string_view point) {
  Registry& r = Reg();
  const std::scoped_lock lock(r.mu);
  const auto it = r.points.find(point);
  return it == r.points.end() ? kNothing : it->second;
}

Action Do(const Armed& armed) {
  switch (armed.kind) {
    case Kind::kError:
      return Action::kError;
    case Kind::kCorrupt:
      return Action::kCorrupt;
    case Kind::kKill:
      kill(getpid(), SIGKILL);
      pause();
      return Action::kNone;
    case Kind::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(armed.delay_ms));
      return Action::kNone;
  }
  return Action::kNone;
}

// The action that a test wrote into a file; none if the file is absent or empty, or if the point
// does not take the action.
std::optional<Armed> ReadAction(const std::filesystem::path& file, std::string_view point) {
  std::string action, name;
  Armed armed{};
  std::getline(std::ifstream(file), action);
  if (action.empty() || !Parse(std::string(point) + "=" + action, &name, &armed).ok() ||
      !Taken(TakesOf(point), armed.kind)) {
    return std::nullopt;
  }
  return armed;
}

// Does the action of `.always`. Otherwise waits while `.armed` exists and is empty, and does an
// action that a test writes into it once. It keeps waiting at an action that the point does not
// take, which is a mistake of the test.
Action StandAt(std::string_view point) {
  const std::filesystem::path base = Dir() / point;
  const auto file = [&](const char* end) { return std::filesystem::path(base.string() + end); };
  if (!Exists(file(".seen"))) (void)Make(file(".seen"));
  if (const auto always = ReadAction(file(".always"), point)) return Do(*always);
  if (!Exists(file(".armed")) || !Make(file(".hit"))) return Action::kNone;
  while (Exists(file(".armed"))) {
    if (const auto action = ReadAction(file(".armed"), point)) {
      std::error_code ignored;
      std::filesystem::remove(file(".armed"), ignored);  // mark it as done
      return Do(*action);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return Action::kNone;
}

}  // namespace

Point::Point(std::string_view name, unsigned takes) {
  Registry& r = Reg();
  const std::scoped_lock lock(r.mu);
  r.points.emplace(name, takes);
}

Status Arm(std::string_view spec) {
  Registry& r = Reg();
  std::map<std::string, Armed, std::less<>> armed;
  while (!spec.empty()) {
    const size_t comma = spec.find(',');
    const std::string_view item = spec.substr(0, comma);
    spec = comma == std::string_view::npos ? std::string_view{} : spec.substr(comma + 1);
    std::string name;
    Armed a{};
    TANGRAM_RETURN_IF_ERROR(Parse(item, &name, &a));
    const std::scoped_lock lock(r.mu);
    const auto point = r.points.find(name);
    if (point == r.points.end()) {
      return {Code::kInvalid,
              "fault spec: no point named '" + name + "'; --list-fault-points lists all"};
    }
    if (!Taken(point->second, a.kind)) {
      return {Code::kInvalid, "fault spec '" + std::string(item) +
                                  "': the point does not support this action; --list-fault-points "
                                  "lists the supported ones"};
    }
    armed.emplace(std::move(name), a);
  }
  const std::scoped_lock lock(r.mu);
  r.armed = std::move(armed);
  r.passes.clear();
  g_any.store(!r.armed.empty(), std::memory_order_relaxed);
  return OkStatus();
}

void Follow(const std::string& dir) {
  if (!dir.empty()) Dir() = dir;
  g_dir.store(!dir.empty(), std::memory_order_release);
}

bool Cut(std::string_view peer) {
  if (!g_dir.load(std::memory_order_acquire)) return false;
  std::ifstream cut(Dir() / "cut");
  for (std::string line; std::getline(cut, line);) {
    if (line == peer) return true;
  }
  return false;
}

Action Hit(std::string_view point) {
  if (g_dir.load(std::memory_order_acquire)) {
    if (const Action action = StandAt(point); action != Action::kNone) return action;
  }
  if (!g_any.load(std::memory_order_relaxed)) return Action::kNone;
  Registry& r = Reg();
  Armed a{};
  {
    const std::scoped_lock lock(r.mu);
    const auto it = r.armed.find(point);
    if (it == r.armed.end()) return Action::kNone;
    if (++r.passes[std::string(point)] != it->second.pass) return Action::kNone;
    a = it->second;
  }
  return Do(a);
}

Status Check(std::string_view point) {
  if (Hit(point) == Action::kError) return {Code::kInternal, "fault point " + std::string(point)};
  return OkStatus();
}

std::vector<std::string> List() {
  Registry& r = Reg();
  const std::scoped_lock lock(r.mu);
  std::vector<std::string> out;
  for (const auto& [name, takes] : r.points) out.push_back(name);
  return out;
}

std::vector<std::string> Describe() {
  Registry& r = Reg();
  const std::scoped_lock lock(r.mu);
  std::vector<std::string> out;
  for (const auto& [name, takes] : r.points) {
    out.push_back(name + ((takes & kErrors) != 0 ? " error" : "") +
                  ((takes & kCorruption) != 0 ? " corrupt" : ""));
  }
  return out;
}

}  // namespace tangram::fault
