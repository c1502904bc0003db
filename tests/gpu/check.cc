#include "tests/gpu/check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "agent/base/unique_fd.h"
#include "tests/gpu/gpu.h"

namespace tangram::gpu {
namespace {

using Clock = std::chrono::steady_clock;

// Runs in the child: a line of JSON per record, so that records survive the child's death.
[[noreturn]] void RunHere(const Act& act, Task task, int out) {
  Recorder recorder(act.name, [&](const Json& record) {
    const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    for (size_t at = 0; at < line.size();) {
      const ssize_t put = write(out, line.data() + at, line.size() - at);
      if (put <= 0) _exit(3);
      at += static_cast<size_t>(put);
    }
  });
  task.out = &recorder;
  try {
    act.run(task);
  } catch (const Lacks& why) {
    recorder.NotRun("the rest", why.what());
  } catch (const std::exception& why) {
    recorder.Failed(why.what());
  }
  _exit(0);
}

// Adds the complete lines.
void Take(std::string* text, std::vector<Json>* records) {
  for (size_t end; (end = text->find('\n')) != std::string::npos; text->erase(0, end + 1)) {
    records->push_back(Json::parse(text->substr(0, end)));
  }
}

}  // namespace

std::vector<Json> Play(const Act& act, Task task) {
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::vector<Json> records;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failed(std::string("a pipe: ") + std::strerror(errno));
  UniqueFd in(ends[0]), out(ends[1]);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Failed(std::string("a process: ") + std::strerror(errno));
  if (child == 0) {
    setpgid(0, 0);  // a process group, to be killed with its children
    in.reset();
    RunHere(act, std::move(task), out.get());
  }
  setpgid(child, child);
  out.reset();
  std::string text, how;
  for (;;) {
    const double left = act.limit_seconds - seconds();
    pollfd wait{in.get(), POLLIN, 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left * 1000) + 1) == 0) {
      how = fmt::format("it did not end within {} s", act.limit_seconds);
      break;
    }
    char buffer[65536];
    const ssize_t got = read(in.get(), buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
    Take(&text, &records);
  }
  // The child may have ended: this kills the processes that it started.
  kill(-child, SIGKILL);
  int status = 0;
  const auto killed = Clock::now();
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() - killed > std::chrono::seconds(10)) {
      how += " and cannot be killed";  // stuck in the kernel
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (how.empty() && WIFSIGNALED(status)) {
    how = fmt::format("it died of signal {}", WTERMSIG(status));
  } else if (how.empty() && WEXITSTATUS(status) != 0) {
    how = fmt::format("it ended with {}", WEXITSTATUS(status));
  }
  Json ended{{"act", act.name}, {"kind", "ended"}, {"seconds", seconds()}};
  if (!how.empty()) ended["how"] = how;
  records.push_back(std::move(ended));
  return records;
}

Json Summary(const std::string& date, std::vector<Json> records) {
  Json out{{"date", date}, {"driver", "unknown"}, {"device", "unknown"}};
  for (const Json& record : records) {
    if (record["kind"] == "fact" && record["act"] == "machine" && out.contains(record["name"])) {
      out[record["name"].get<std::string>()] = record["text"];
    }
  }
  // The recording driver moves bytes with the CPU and has no clock: its figures are not judged.
  const bool recorded = out["device"].get<std::string>().find("(recorded)") != std::string::npos;
  uint64_t wrong = 0, passed = 0, missed = 0, broken = 0, not_run = 0;
  for (Json& record : records) {
    const std::string kind = record["kind"];
    if (recorded) record.erase("verdict");
    wrong += kind == "wrong" ? 1 : 0;
    not_run += kind == "not_run" ? 1 : 0;
    broken += kind == "failed" || (kind == "ended" && record.contains("how")) ? 1 : 0;
    const std::string verdict = record.value("verdict", "");
    passed += verdict == "pass" ? 1 : 0;
    missed += verdict == "missed" ? 1 : 0;
  }
  out["wrong"] = wrong;
  out["broken_off"] = broken;
  out["not_run"] = not_run;
  out["goals_passed"] = passed;
  out["goals_missed"] = missed;
  out["recorded"] = recorded;
  out["records"] = std::move(records);
  return out;
}

bool IsRight(const Json& summary) { return summary["wrong"] == 0 && summary["broken_off"] == 0; }

}  // namespace tangram::gpu
