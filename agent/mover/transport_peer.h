// Another project's way to bring the same bytes over the same wire, which `tangram-transport`
// measures in turns with ours: a program (tests/peers/pair.py) that first says what it can, then is
// asked for one transfer at a time, a line of JSON for a line of JSON.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/base/unique_fd.h"

namespace tangram::mover {

class Peer {
 public:
  struct Limits {
    std::chrono::seconds start{200}, transfer{120};  // the program has shorter ones of its own
  };

  // Starts the program and hears what it can. `memory`: the bytes that either side has.
  Peer(std::string name, const std::vector<std::string>& command, uint64_t memory)
      : Peer(std::move(name), command, memory, Limits()) {}
  Peer(std::string name, const std::vector<std::string>& command, uint64_t memory, Limits limits);
  ~Peer();  // ends it
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Why it is not measured, or not to the end ("not installed", or what failed); empty: it is.
  const std::string& trouble() const { return trouble_; }

  // Two transfers in each of its settings, of which the second counts. Nothing, if so few bytes
  // tell nothing of it, or after trouble.
  void Turn(uint64_t bytes);
  // Adds to the line of a size: the rate of its fastest setting, by the median of the turns since
  // the last line, and ours over that. Nothing, if nothing counted, or after trouble.
  void Tell(uint64_t bytes, double our_seconds, nlohmann::json* line);
  // Adds to the summary: the worst of ours over its rates and the rate of the last line, or its
  // trouble; and its version.
  void Sum(nlohmann::json* metrics, nlohmann::json* versions) const;

 private:
  void Start(const std::vector<std::string>& command);
  // The next line; none: trouble, and the program has ended.
  std::optional<nlohmann::json> Hear(std::chrono::seconds limit);
  std::optional<double> Bring(size_t setting, uint64_t offset, uint64_t bytes);
  void End(const std::string& why);

  const std::string name_;
  const uint64_t memory_;
  const Limits limits_;
  std::string version_, trouble_;
  std::vector<std::string> settings_;
  uint64_t least_ = 0;
  pid_t pid_ = -1;
  UniqueFd wire_;
  std::string rest_;                             // heard, behind the last line
  uint64_t next_ = 0;                            // offset of the next transfer
  std::map<size_t, std::vector<double>> times_;  // by setting
  std::optional<double> worst_, rate_;           // ours over its, of all lines; of the last
};

using Peers = std::vector<std::unique_ptr<Peer>>;

// Where a pair of processes stands.
struct PeerPlace {
  std::string source_net;  // a file
  std::string source, reader;
  uint64_t memory = 0;  // bytes at either side
};

// All that the program knows; none without a program.
Peers StartPeers(const std::string& program, const PeerPlace& place);

// The middle one of at least one.
double Median(std::vector<double> values);

}  // namespace tangram::mover
