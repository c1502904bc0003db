// What an act tells, record by record: facts, figures, what was compared, what was wrong. They are
// JSON from the start, as they come from processes that may die at any moment.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tangram::gpu {

using Json = nlohmann::json;

// A number with the bound that it is judged by.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  // The same of what cannot be beaten, or of what it is compared with, measured beside it.
  std::optional<double> ceiling = std::nullopt;
  std::string ceiling_is = "";
  // What value / ceiling (or the value, without a ceiling) shall be: at least, or at most.
  std::optional<double> goal = std::nullopt;
  bool at_most = false;
  // Where the value is a median: of so many, and the hundredth part are above this.
  std::optional<double> p99 = std::nullopt;
  uint64_t samples = 0;
  std::string note = "";
};

// Of one act. Every call is a record, at once.
class Recorder {
 public:
  Recorder(std::string act, std::function<void(const Json&)> write)
      : act_(std::move(act)), write_(std::move(write)) {}

  void Fact(const std::string& name, const std::string& text);
  void Add(const Figure& figure);
  // So many comparisons of this kind came out equal.
  void Right(const std::string& what, uint64_t count);
  // Bytes that are not what they must be: the check as a whole is wrong.
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
