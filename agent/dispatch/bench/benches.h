// The benches of dispatch. Each prints JSON lines, with a summary last, and returns the exit code.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tangram::dispatch::bench {

int Rate(bool quick, bool (*print)(const nlohmann::json&));
int Fp8(bool quick, bool (*print)(const nlohmann::json&));
// `gloo`: the command of tests/peers/gloo.py, without its arguments; empty: no comparison.
int Latency(bool quick, bool (*print)(const nlohmann::json&), const std::string& gloo);
int Masked(bool quick, bool (*print)(const nlohmann::json&));
int MembersChange(bool quick, bool (*print)(const nlohmann::json&));

}  // namespace tangram::dispatch::bench
