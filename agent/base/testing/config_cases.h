// The cases of tests/golden/config.json (see its README), for the readers of config.json in C++.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tangram::testing {

struct ConfigCase {
  std::string name, model;  // the tested change; model_type of the base
  std::string config;       // the text of config.json
  nlohmann::json facts;     // null: rejected
  std::string refused;      // the message after "config.json: "
};

// Throws if the file is missing or malformed.
inline std::vector<ConfigCase> ReadConfigCases(const std::string& golden_directory) {
  std::ifstream in(golden_directory + "/config.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  std::vector<ConfigCase> out;
  for (const nlohmann::json& entry : golden.at("cases")) {
    const std::string base = entry.at("base");
    nlohmann::json config = golden.at("bases").at(base);
    for (const auto& name : entry.value("unset", std::vector<std::string>())) config.erase(name);
    const nlohmann::json set = entry.value("set", nlohmann::json::object());
    for (const auto& [name, value] : set.items()) config[name] = value;
    out.push_back({base + ", " + entry.at("name").get<std::string>(), base, config.dump(),
                   entry.value("facts", nlohmann::json()), entry.value("refused", "")});
  }
  return out;
}

}  // namespace tangram::testing
