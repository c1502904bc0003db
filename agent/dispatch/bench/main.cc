// tangram-dispatch NAME: the benches dispatch, dispatch-latency, dispatch-fp8, dispatch-masked,
// dispatch-members. QUICK=1: smaller ones. dispatch-latency GLOO...: also runs this command for
// comparison (tests/peers/gloo.py).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "agent/dispatch/bench/benches.h"

int main(int argc, char** argv) {
  using namespace tangram::dispatch::bench;
  static std::string gloo;
  for (int i = 2; i < argc; ++i) gloo += std::string(i == 2 ? "" : " ") + argv[i];
  const std::map<std::string, int (*)(bool, bool (*)(const nlohmann::json&))> benches{
      {"dispatch", Rate},
      {"dispatch-latency",
       [](bool quick, bool (*print)(const nlohmann::json&)) {
         return Latency(quick, print, gloo);
       }},
      {"dispatch-fp8", Fp8},
      {"dispatch-masked", Masked},
      {"dispatch-members", MembersChange}};
  const auto bench = benches.find(argc >= 2 ? argv[1] : "");
  if (bench == benches.end()) {
    std::fprintf(stderr, "tangram-dispatch NAME, one of:");
    for (const auto& [name, run] : benches) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const char* const quick = std::getenv("QUICK");
  return bench->second(quick != nullptr && std::strcmp(quick, "1") == 0,
                       [](const nlohmann::json& line) {
                         std::printf("%s\n", line.dump().c_str());
                         return std::fflush(stdout) == 0;
                       });
}
