// Ranks of a bench: a process each, synchronized with the others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/dispatch/buffer.h"

namespace tangram::dispatch::bench {

// Memory that all ranks share.
class Stage {
 public:
  static constexpr size_t kRanks = 64, kFigures = 4096;

  explicit Stage(uint32_t ranks);
  ~Stage();
  Stage(const Stage&) = delete;

  uint32_t ranks() const { return ranks_; }
  // Waits until `of` ranks have arrived.
  void Meet(uint32_t of);
  void Meet() { Meet(ranks_); }
  double& figure(uint32_t rank, size_t index);
  // The largest of all ranks' figures, and their median over indexes [0, count).
  double MostOf(size_t index) const;
  double MedianOfMost(size_t count) const;

 private:
  struct Shared;
  const uint32_t ranks_;
  Shared* shared_;
};

// Runs `run` in a process per rank, rank r on core r modulo the cores, and waits for all; false:
// one failed (its reason is on stderr).
bool OnRanks(Stage& stage, const std::function<Status(uint32_t rank)>& run);

// A folder for their sockets, removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Member MemberOf(uint32_t rank) const;

 private:
  std::string path_;
};

// A buffer of this rank, connected to the others, in a world where each of `experts` is on one
// rank.
Result<std::unique_ptr<Buffer>> Enter(const Folder& folder, uint32_t rank, uint32_t ranks,
                                      const BufferOptions& options);
std::shared_ptr<const Routes> RoutesFor(uint32_t rank, uint32_t ranks, uint32_t experts);

// Rows of a rank: normal numbers in BF16, distinct random experts per row, weights that add up to
// 1.
struct Drawn {
  std::vector<uint16_t> x;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  Rows rows;
};
Drawn Draw(const Format& format, uint32_t tokens, uint32_t seed);

double Seconds(const std::function<void()>& run);
double Median(std::vector<double> values);
double Quantile(std::vector<double> values, double quantile);

}  // namespace tangram::dispatch::bench
