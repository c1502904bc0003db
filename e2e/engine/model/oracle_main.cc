// tangram-oracle: reads prompts, prints tokens and logit hashes. JSON lines on both sides.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "e2e/engine/model/checkpoint.h"
#include "e2e/engine/model/oracle.h"

namespace tangram::model {
namespace {

using nlohmann::json;

// One line: {"prompt": [..], "max_tokens": n, "temperature", "top_p", "seed", "stop_tokens"}.
Result<OracleRequest> ParseRequest(const std::string& line) {
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object()) return Status(Code::kInvalid, "request is not a JSON object: " + line);
  try {
    OracleRequest r;
    r.prompt = j.at("prompt").get<std::vector<uint32_t>>();
    r.max_tokens = j.at("max_tokens").get<uint32_t>();
    r.sampling = {j.value("temperature", 0.0f), j.value("top_p", 1.0f),
                  j.value("seed", uint64_t{0})};
    r.stop_tokens = j.value("stop_tokens", std::vector<uint32_t>{});
    return r;
  } catch (const json::exception& e) {  // the library reports a wrong type only as an exception
    return Status(Code::kInvalid, std::string("request: ") + e.what());
  }
}

int Main(int argc, char** argv) {
  CLI::App app{
      "One-process reference run. Reads requests as JSON lines from stdin, one answer a line:\n"
      "{\"tokens\": [..], \"hashes\": [\"16 hex digits\", ..]}"};
  std::string dir;
  uint32_t granule_rows = 0;
  OracleOptions options;
  app.add_option("--checkpoint", dir, "folder of config.json and safetensors")->required();
  app.add_option("--granule-rows", granule_rows, "rows of a granule")->required();
  app.add_option("--prefill-chunk", options.prefill_chunk, "tokens per prefill step, 0: all");
  app.add_option("--block-tokens", options.block_tokens, "positions of a KV page")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  auto fail = [](const Status& status) {
    std::cerr << "tangram-oracle: " << status.message() << "\n";
    return 1;
  };
  auto checkpoint = Checkpoint::Open(dir, granule_rows);
  if (!checkpoint.ok()) return fail(checkpoint.status());
  auto oracle = Oracle::Create(**checkpoint);
  if (!oracle.ok()) return fail(oracle.status());
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) continue;
    auto request = ParseRequest(line);
    if (!request.ok()) return fail(request.status());
    const auto start = std::chrono::steady_clock::now();
    auto result = oracle->Run({&*request, 1}, options);
    if (!result.ok()) return fail(result.status());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    json hashes = json::array();
    for (uint64_t hash : (*result)[0].hashes) {
      char text[17];
      std::snprintf(text, sizeof text, "%016lx", hash);
      hashes.push_back(text);
    }
    std::cout << json{{"tokens", (*result)[0].tokens},
                      {"hashes", hashes},
                      {"seconds", seconds.count()}}
                     .dump()
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace tangram::model

int main(int argc, char** argv) { return tangram::model::Main(argc, argv); }
