// The summary as a Markdown table.
#include <fmt/format.h>

#include "tests/gpu/check.h"

namespace tangram::gpu {
namespace {

std::string Number(double value) {
  return fmt::format("{:.{}f}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

std::string Row(const Json& figure) {
  std::string ceiling, goal;
  if (figure.contains("ceiling")) {
    ceiling =
        fmt::format("{} {}", Number(figure["ceiling"]), figure["ceiling_is"].get<std::string>());
  }
  if (figure.contains("goal")) {
    goal = fmt::format("{} {}", figure["goal_is"].get<std::string>(), Number(figure["goal"]));
  }
  std::string note = figure.value("note", "");
  if (figure.contains("p99")) {
    note += fmt::format("{}p99 {}, of {}", note.empty() ? "" : "; ", Number(figure["p99"]),
                        figure["samples"].dump());
  }
  return fmt::format("| {} | {} {} | {} | {} | {} | {} | {} |\n", figure["name"].get<std::string>(),
                     Number(figure["value"]), figure["unit"].get<std::string>(), ceiling,
                     figure.contains("ratio") ? Number(figure["ratio"]) : "", goal,
                     figure.value("verdict", ""), note);
}

std::string Section(const Act& act, const Json& records) {
  std::string lines, rows;
  for (const Json& record : records) {
    if (record["act"] != act.name) continue;
    const std::string kind = record["kind"];
    if (kind == "fact") {
      lines += fmt::format("* {}: {}\n", record["name"].get<std::string>(),
                           record["text"].get<std::string>());
    } else if (kind == "right") {
      lines += fmt::format("* right: {} {}\n", record["count"].get<uint64_t>(),
                           record["what"].get<std::string>());
    } else if (kind == "wrong") {
      lines += "* **WRONG**: " + record["what"].get<std::string>() + "\n";
    } else if (kind == "not_run") {
      lines += fmt::format("* not run: {}: {}\n", record["what"].get<std::string>(),
                           record["why"].get<std::string>());
    } else if (kind == "failed") {
      lines += "* **broke off**: " + record["why"].get<std::string>() + "\n";
    } else if (kind == "ended") {
      if (record.contains("how")) {
        lines += "* **broke off**: " + record["how"].get<std::string>() + "\n";
      }
      lines += fmt::format("* {:.1f} s\n", record["seconds"].get<double>());
    } else if (kind == "figure") {
      rows += Row(record);
    }
  }
  if (lines.empty() && rows.empty()) return "";
  if (!rows.empty()) {
    rows =
        "\n| figure | value | ceiling | ratio | goal | verdict | note |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n" +
        rows;
  }
  return fmt::format("\n## {}: {}\n\n{}{}", act.name, act.what, lines, rows);
}

}  // namespace

std::string Markdown(const Json& summary) {
  std::string out =
      fmt::format("# GPU check\n\n{}, on {} (driver of {}).\n", summary["date"].get<std::string>(),
                  summary["device"].get<std::string>(), summary["driver"].get<std::string>());
  if (summary["recorded"].get<bool>()) {
    out +=
        "\n**Recorded driver: figures mean nothing.** What was compared is right or wrong all the "
        "same.\n";
  }
  out +=
      fmt::format("\nWrong: {}; broken off: {}; not run: {}; goals passed: {}, missed: {}.\n",
                  summary["wrong"].dump(), summary["broken_off"].dump(), summary["not_run"].dump(),
                  summary["goals_passed"].dump(), summary["goals_missed"].dump());
  for (const Act& act : Acts()) out += Section(act, summary["records"]);
  return out;
}

}  // namespace tangram::gpu
