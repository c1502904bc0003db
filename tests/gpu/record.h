// The records of an act: facts, figures, comparisons, errors. They are JSON from the start, because
// the process that writes them may die at any moment.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tangram::gpu {

using Json = nlohmann::json;

// A number with its goal.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  // The limit or the peer that it is compared with, measured in the same run.
  std::optional<double> ceiling = std::nullopt;
  std::string ceiling_is = "";
  // The goal of value / ceiling (or of the value, without a ceiling): a minimum, or a maximum.
  std::optional<double> goal = std::nullopt;
  bool at_most = false;
  // If the value is a median: the number of samples, and their 99th percentile.
  std::optional<double> p99 = std::nullopt;
  uint64_t samples = 0;
  std::string note = "";
};

// The records of one act. Every call writes one immediately.
class Recorder {
 public:
  Recorder(std::string act, std::function<void(const Json&)> write)
      : act_(std::move(act)), write_(std::move(write)) {}

  void Fact(const std::string& name, const std::string& text);
  void Add(const Figure& figure);
  // `count` comparisons of this kind were equal.
  void Right(const std::string& what, uint64_t count);
  // Bytes differ from the expected ones: the whole check is wrong.
  void Wrong(const std::string& what);
  void NotRun(const std::string& what, const std::string& why);
  // The act broke off.
  void Failed(const std::string& why);

 private:
  void Write(const char* kind, Json record);

  const std::string act_;
  const std::function<void(const Json&)> write_;
};

}  // namespace tangram::gpu
