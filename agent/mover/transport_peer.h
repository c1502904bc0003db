// Another project's transport for the same bytes over the same link, which `tangram-transport`
// measures in turns with ours. It is a program (tests/peers/pair.py) that first reports its
// settings, then makes one transfer per request; requests and replies are lines of JSON.
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
    std::chrono::seconds start{200}, transfer{120};  // the program's own limits are shorter
  };

  // Starts the program and reads its settings. `memory`: the bytes of either side.
  Peer(std::string name, const std::vector<std::string>& command, uint64_t memory)
      : Peer(std::move(name), command, memory, Limits()) {}
  Peer(std::string name, const std::vector<std::string>& command, uint64_t memory, Limits limits);
  ~Peer();  // ends it
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Why it is not measured, or only partly ("not installed", or the failure); empty: no trouble.
  const std::string& trouble() const { return trouble_; }

  // Two transfers in each of its settings; the second counts. Does nothing if the size is too small
  // for it, or after trouble.
  void Turn(uint64_t bytes);
  // Adds to the line of a size: the rate of its fastest setting, by the median of the turns since
  // the last line, and the ratio of ours to it. Adds nothing without a result, or after trouble.
  void Tell(uint64_t bytes, double our_seconds, nlohmann::json* line);
  // Adds to the summary: the worst ratio of ours to its rates and the rate of the last line, or its
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
  std::string rest_;                             // received after the last line
  uint64_t next_ = 0;                            // offset of the next transfer
  std::map<size_t, std::vector<double>> times_;  // by setting
  std::optional<double> worst_, rate_;           // ours over its, worst of all; its last rate
};

using Peers = std::vector<std::unique_ptr<Peer>>;

// The locations of a pair of processes.
struct PeerPlace {
  std::string source_net;  // a file
  std::string source, reader;
  uint64_t memory = 0;  // bytes of either side
};

// All settings of the program as peers; none without a program.
Peers StartPeers(const std::string& program, const PeerPlace& place);

// The median of at least one value.
double Median(std::vector<double> values);

}  // namespace tangram::mover
