#include "agent/mover/transport_peer.h"

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <tuple>
#include <utility>

namespace tangram::mover {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Peer::Peer(std::string name, const std::vector<std::string>& command, uint64_t memory,
           Limits limits)
    : name_(std::move(name)), memory_(memory), limits_(limits) {
  Start(command);
  if (!trouble_.empty()) return;
  const auto can = Hear(limits_.start);
  if (!can) return;
  try {
    version_ = can->at("version").get<std::string>();
    settings_ = can->at("settings").get<std::vector<std::string>>();
    least_ = can->at("least").get<uint64_t>();
  } catch (const nlohmann::json::exception& e) {
    End(fmt::format("failed: it says {}: {}", can->dump(), e.what()));
  }
}

Peer::~Peer() { End(trouble_); }

void Peer::Start(const std::vector<std::string>& command) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    trouble_ = fmt::format("failed: socketpair: {}", std::strerror(errno));
    return;
  }
  wire_.reset(ends[0]);
  const UniqueFd its(ends[1]);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, its.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, its.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  const int error = posix_spawnp(&pid_, words[0], &files, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return;
  pid_ = -1;
  trouble_ = fmt::format("failed: {} does not start: {}", command[0], std::strerror(error));
}

void Peer::End(const std::string& why) {
  trouble_ = why;
  wire_.reset();
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

std::optional<nlohmann::json> Peer::Hear(std::chrono::seconds limit) {
  const auto until = Clock::now() + limit;
  size_t end = 0;
  while ((end = rest_.find('\n')) == std::string::npos) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd wire{wire_.get(), POLLIN, 0};
    if (left <= 0 || (poll(&wire, 1, static_cast<int>(left)) <= 0 && errno != EINTR)) {
      End(fmt::format("failed: it says nothing for {} s", limit.count()));
      return std::nullopt;
    }
    if (wire.revents == 0) continue;
    char some[4096];
    const ssize_t n = recv(wire_.get(), some, sizeof some, 0);
    if (n <= 0) {
      End("failed: it ended");
      return std::nullopt;
    }
    rest_.append(some, static_cast<size_t>(n));
  }
  const std::string line = rest_.substr(0, end);
  rest_.erase(0, end + 1);
  auto answer = nlohmann::json::parse(line, nullptr, false);
  if (!answer.is_object()) {
    End(fmt::format("failed: it says '{}'", line.substr(0, 80)));
    return std::nullopt;
  }
  if (answer.contains("trouble")) {
    End(answer["trouble"].is_string() ? answer["trouble"].get<std::string>() : line);
    return std::nullopt;
  }
  return answer;
}

std::optional<double> Peer::Bring(size_t setting, uint64_t offset, uint64_t bytes) {
  const std::string line =
      nlohmann::json{{"setting", setting}, {"offset", offset}, {"bytes", bytes}}.dump() + "\n";
  // A line fits in the buffer. If the program has ended, Hear() reports why.
  (void)send(wire_.get(), line.data(), line.size(), MSG_NOSIGNAL);
  const auto answer = Hear(limits_.transfer);
  if (!answer) return std::nullopt;
  const auto seconds = answer->find("seconds");
  if (seconds == answer->end() || !seconds->is_number() || seconds->get<double>() <= 0) {
    End(fmt::format("failed: it says {}", answer->dump()));
    return std::nullopt;
  }
  return seconds->get<double>();
}

void Peer::Turn(uint64_t bytes) {
  if (bytes < least_) return;
  for (size_t setting = 0; setting < settings_.size(); ++setting) {
    for (const bool counts : {false, true}) {
      if (!trouble_.empty()) return;
      if (next_ + bytes > memory_) next_ = 0;
      const auto took = Bring(setting, std::exchange(next_, next_ + bytes), bytes);
      if (took && counts) times_[setting].push_back(*took);
    }
  }
}

void Peer::Tell(uint64_t bytes, double our_seconds, nlohmann::json* line) {
  double best = 0;
  size_t fastest = 0;
  nlohmann::json rates;
  for (const auto& [setting, times] : std::exchange(times_, {})) {
    const double rate = static_cast<double>(bytes) / Median(times) / 1e9;
    rates[settings_[setting]] = rate;
    if (rate > best) std::tie(best, fastest) = std::pair(rate, setting);
  }
  if (best == 0 || !trouble_.empty()) return;
  const double over = static_cast<double>(bytes) / our_seconds / 1e9 / best;
  worst_ = std::min(worst_.value_or(over), over);
  rate_ = best;
  (*line)[name_ + "_gb_per_s"] = best;
  (*line)[name_ + "_setting"] = settings_[fastest];
  (*line)[name_ + "_settings_gb_per_s"] = std::move(rates);
  (*line)["over_" + name_] = over;
}

void Peer::Sum(nlohmann::json* metrics, nlohmann::json* versions) const {
  if (!version_.empty()) (*versions)[name_] = version_;
  if (!trouble_.empty()) (*metrics)["over_" + name_] = trouble_;
  if (!trouble_.empty() || !worst_) return;
  (*metrics)["over_" + name_] = *worst_;
  (*metrics)[name_ + "_gb_per_s"] = *rate_;
}

Peers StartPeers(const std::string& program, const PeerPlace& place) {
  Peers out;
  if (program.empty()) return out;
  for (const char* name : {"nixl", "mooncake", "iperf3"}) {
    const std::vector<std::string> command = {
        "setpriv",      "--pdeathsig",    "KILL",                    // also if this is killed
        "python3",      program,          name,                      //
        "--source-net", place.source_net, "--source", place.source,  //
        "--reader",     place.reader,     "--bytes",  std::to_string(place.memory)};
    out.push_back(std::make_unique<Peer>(name, command, place.memory));
  }
  return out;
}

}  // namespace tangram::mover
