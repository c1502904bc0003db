// tangram-gpu-check: all checks that need a GPU, in one command. Exit code 0: everything that could
// run was right (a missed goal is not wrong); 1: bytes differ, or an act broke off; 2: no GPU.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "tests/gpu/check.h"

namespace tangram::gpu {
namespace {

std::string Today() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return text;
}

bool Write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file.fail()) return true;
  fmt::print(stderr, "tangram-gpu-check: cannot write {}\n", path.string());
  return false;
}

// Prints a short summary of an act while the others run.
void Say(const Act& act, const std::vector<Json>& records) {
  uint64_t right = 0, figures = 0;
  for (const Json& record : records) {
    const std::string kind = record["kind"];
    right += kind == "right" ? 1 : 0;
    figures += kind == "figure" ? 1 : 0;
    if (kind == "wrong") fmt::print("  WRONG: {}\n", record["what"].get<std::string>());
    if (kind == "failed") fmt::print("  broke off: {}\n", record["why"].get<std::string>());
    if (kind == "not_run") {
      fmt::print("  not run: {}: {}\n", record["what"].get<std::string>(),
                 record["why"].get<std::string>());
    }
    if (record.contains("how")) fmt::print("  broke off: {}\n", record["how"].get<std::string>());
  }
  fmt::print("{}: {} things right, {} figures, {:.1f} s\n", act.name, right, figures,
             records.back()["seconds"].get<double>());
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  CLI::App app("everything of Tangram that wants a GPU: what is right, and how fast");
  Task task;
  task.driver = "libcuda.so.1";
  std::string folder = ".";
  std::vector<std::string> only;
  bool list = false;
  app.add_option("--driver", task.driver, "the driver's library, a name or a path");
  app.add_option("--out", folder, "where gpu-results.md and gpu-results.json go")->take_last();
  app.add_option("--only", only, "some of the acts");
  app.add_flag("--small", task.small, "small sizes, for a recording driver");
  app.add_flag("--list", list, "names the acts");
  CLI11_PARSE(app, argc, argv);
  const auto known = Acts();
  if (list) {
    for (const Act& act : known) {
      fmt::print("{:14}{} (at most {} s)\n", act.name, act.what, act.limit_seconds);
    }
    return 0;
  }
  for (const std::string& name : only) {
    if (std::any_of(known.begin(), known.end(), [&](const Act& act) { return act.name == name; })) {
      continue;
    }
    fmt::print(stderr, "tangram-gpu-check: there is no act {}; --list names them\n", name);
    return 64;
  }
  std::vector<Json> records;
  for (const Act& act : known) {
    // The first act describes the machine and always runs.
    const bool first = &act == known.data();
    if (!first && !only.empty() && std::find(only.begin(), only.end(), act.name) == only.end()) {
      continue;
    }
    auto told = Play(act, task);
    if (first && std::none_of(told.begin(), told.end(), [](const Json& record) {
          return record.value("name", "") == "device";
        })) {
      std::string why = "the driver told nothing";
      for (const Json& record : told) {
        if (record.contains("why")) why = record["why"];
        if (record.contains("how")) why = record["how"];
      }
      fmt::print("tangram-gpu-check: no GPU here: {}\n", why);
      return 2;
    }
    Say(act, told);
    records.insert(records.end(), told.begin(), told.end());
  }
  const Json summary = Summary(Today(), std::move(records));
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const std::filesystem::path out = folder;
  if (!Write(out / "gpu-results.md", Markdown(summary)) ||
      !Write(out / "gpu-results.json", summary.dump(1) + "\n")) {
    return 1;
  }
  fmt::print("wrong: {}, broken off: {}, not run: {}, goals passed: {}, missed: {}; see {}\n",
             summary["wrong"].dump(), summary["broken_off"].dump(), summary["not_run"].dump(),
             summary["goals_passed"].dump(), summary["goals_missed"].dump(),
             (out / "gpu-results.md").string());
  return IsRight(summary) ? 0 : 1;
}

}  // namespace
}  // namespace tangram::gpu

int main(int argc, char** argv) { return tangram::gpu::Main(argc, argv); }
