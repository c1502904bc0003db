#include "tests/gpu/record.h"

#include <utility>

namespace tangram::gpu {

void Recorder::Write(const char* kind, Json record) {
  record["act"] = act_;
  record["kind"] = kind;
  write_(record);
}

void Recorder::Fact(const std::string& name, const std::string& text) {
  Write("fact", {{"name", name}, {"text", text}});
}

void Recorder::Add(const Figure& figure) {
  Json record{{"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
  double judged = figure.value;
  if (figure.ceiling) {
    judged = *figure.ceiling != 0 ? figure.value / *figure.ceiling : 0;
    record["ceiling"] = *figure.ceiling;
    record["ceiling_is"] = figure.ceiling_is;
    record["ratio"] = judged;
  }
  if (figure.goal) {
    record["goal"] = *figure.goal;
    record["goal_is"] = figure.at_most ? "at most" : "at least";
    const bool met = figure.at_most ? judged <= *figure.goal : judged >= *figure.goal;
    record["verdict"] = met ? "pass" : "missed";
  }
  if (figure.p99) {
    record["p99"] = *figure.p99;
    record["samples"] = figure.samples;
  }
  if (!figure.note.empty()) record["note"] = figure.note;
  Write("figure", std::move(record));
}

void Recorder::Right(const std::string& what, uint64_t count) {
  Write("right", {{"what", what}, {"count", count}});
}
void Recorder::Wrong(const std::string& what) { Write("wrong", {{"what", what}}); }
void Recorder::NotRun(const std::string& what, const std::string& why) {
  Write("not_run", {{"what", what}, {"why", why}});
}
void Recorder::Failed(const std::string& why) { Write("failed", {{"why", why}}); }

}  // namespace tangram::gpu
