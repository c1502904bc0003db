// The benches of dispatch; each prints JSON lines, the last one sums up. The exit code.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tangram::dispatch::bench {

int Rate(bool quick, bool (*print)(const nlohmann::json&));
int Fp8(bool quick, bool (*print)(const nlohmann::json&));
// `gloo`: a command that tests/peers/gloo.py's arguments go behind; empty: not beside it.
int Latency(bool quick, bool (*print)(const nlohmann::json&), const std::string& gloo);
int Masked(bool quick, bool (*print)(const nlohmann::json&));
int MembersChange(bool quick, bool (*print)(const nlohmann::json&));

}  // namespace tangram::dispatch::bench
