#include "agent/server/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "agent/net/address.h"
#include "agent/server/files.h"

namespace tangram {
namespace {

// Reads one mapping. Every key is read at most once; keys that no call read are unknown.
class Section {
 public:
  Section(YAML::Node node, std::string file, std::string prefix, Status* error)
      : node_(std::move(node)), file_(std::move(file)), prefix_(std::move(prefix)), error_(error) {}

  void Text(const char* key, bool required, std::string* out) {
    const YAML::Node value = Take(key, required);
    if (!value) return;
    if (!value.IsScalar()) return Fail(value, key, "must be a string");
    *out = value.Scalar();
    if (required && out->empty()) Fail(value, key, "must not be empty");
    // The kernel would read a path up to the zero byte and use another file.
    if (out->find('\0') != std::string::npos) Fail(value, key, "must not contain a zero byte");
  }

  template <typename T>
  void Number(const char* key, bool required, uint64_t min, uint64_t max, T* out) {
    const YAML::Node value = Take(key, required);
    if (!value) return;
    uint64_t number = 0;
    const std::string text = value.IsScalar() ? value.Scalar() : "";
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (text.empty() || bad != std::errc() || end != text.data() + text.size()) {
      return Fail(value, key, "must be a whole number, is '" + text + "'");
    }
    if (number < min || number > max) {
      return Fail(value, key,
                  std::to_string(number) + " is not in the range " + std::to_string(min) + ".." +
                      std::to_string(max));
    }
    *out = static_cast<T>(number);
  }

  void Flag(const char* key, bool* out) {
    const YAML::Node value = Take(key, false);
    if (!value) return;
    // Only these two: yaml-cpp would also take yes, on, y.
    if (value.IsScalar() && value.Scalar() == "true") {
      *out = true;
    } else if (value.IsScalar() && value.Scalar() == "false") {
      *out = false;
    } else {
      Fail(value, key, "must be true or false");
    }
  }

  template <typename T>
  void Choice(const char* key, const std::map<std::string, std::type_identity_t<T>>& of, T* out) {
    const YAML::Node value = Take(key, false);
    if (!value) return;
    const auto chosen = value.IsScalar() ? of.find(value.Scalar()) : of.end();
    if (chosen != of.end()) {
      *out = chosen->second;
      return;
    }
    std::string names;
    for (const auto& [name, _] : of) names += (names.empty() ? "" : " or ") + name;
    Fail(value, key, "must be " + names);
  }

  YAML::Node Map(const char* key, bool required) {
    YAML::Node value = Take(key, required);
    if (value && !value.IsMap()) {
      Fail(value, key, "must be a mapping");
      return YAML::Node(YAML::NodeType::Undefined);
    }
    return value;
  }

  void RefuseOthers() {
    for (const auto& entry : node_) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
      if (!seen_.contains(key)) return Fail(entry.first, key, "unknown key");
      if (++count_[key] > 1) return Fail(entry.first, key, "duplicate key");
    }
  }

 private:
  YAML::Node Take(const char* key, bool required) {
    seen_.insert(key);
    const YAML::Node value = std::as_const(node_)[key];
    if (!value.IsDefined() || value.IsNull()) {
      if (required) Fail(node_, key, "missing");
      return YAML::Node(YAML::NodeType::Undefined);
    }
    return value;
  }

  void Fail(const YAML::Node& at, const std::string& key, const std::string& why) {
    if (!error_->ok()) return;
    // An override has no line.
    const int line = at.IsDefined() ? at.Mark().line + 1 : 0;
    *error_ = {Code::kInvalid, file_ + (line > 0 ? ":" + std::to_string(line) : " and --set") +
                                   ": " + prefix_ + key + ": " + why};
  }

  YAML::Node node_;
  std::string file_, prefix_;
  Status* error_;
  std::set<std::string> seen_;
  std::map<std::string, int> count_;
};

Status Read(const YAML::Node& root, const std::string& file, AgentConfig* out) {
  if (!root.IsMap()) return {Code::kInvalid, file + ": must be a mapping of keys"};
  Status error;
  Section top(root, file, "", &error);
  top.Text("world", true, &out->world);
  top.Text("pod", true, &out->pod);
  top.Text("pod_uid", true, &out->pod_uid);
  top.Text("node", true, &out->node);
  top.Number("incarnation", false, 1, UINT64_MAX, &out->incarnation);
  top.Number("ranks", false, 1, 64, &out->ranks);
  top.Number("memory_bytes", true, 1, uint64_t{1} << 46, &out->memory_bytes);
  top.Number("kv_bytes", true, 1, uint64_t{1} << 46, &out->kv_bytes);
  top.Number("spare_banks", false, 1, 1024, &out->spare_banks);
  top.Number("granule_rows", false, 1, 1 << 20, &out->granule_rows);
  top.Choice(
      "slab_format",
      {{"granule-major", v1::SLAB_FORMAT_GRANULE_MAJOR}, {"row-major", v1::SLAB_FORMAT_ROW_MAJOR}},
      &out->slab_format);
  top.Number("load_threads", false, 1, 256, &out->load_threads);
  top.Number("staging_percent", false, 1, 100, &out->staging_percent);
  top.Number("max_step_stretch_percent", false, 1, 10000, &out->max_step_stretch_percent);
  top.Text("device", false, &out->device);
  top.Number("device_ordinal", false, 0, 255, &out->device_ordinal);
  top.Text("cuda_driver", false, &out->cuda_driver);
  top.Number("page_bytes", false, 256, uint64_t{1} << 40, &out->page_bytes);
  top.Flag("hugetlb", &out->hugetlb);
  top.Text("checkpoint", true, &out->checkpoint);
  top.Text("revision", true, &out->revision);
  top.Text("listen", true, &out->listen);
  top.Text("data_listen", true, &out->data_listen);
  top.Text("advertise", false, &out->advertise);
  top.Text("node_socket_dir", false, &out->node_socket_dir);
  top.Text("metrics_listen", false, &out->metrics_listen);
  top.Text("engine_socket", true, &out->engine_socket);
  top.Text("engine_token_file", true, &out->engine_token_file);
  top.Text("ready_file", false, &out->ready_file);
  top.Text("in_world_file", false, &out->in_world_file);
  top.Text("hashes_file", false, &out->hashes_file);
  top.Text("link", false, &out->link);
  top.Text("nvlink_domain", false, &out->nvlink_domain);
  top.Text("rail", false, &out->rail);
  top.Choice("comm_library",
             {{"auto", std::string("auto")},
              {"none", std::string("none")},
              {"nccl", std::string("nccl")},
              {"ucx", std::string("ucx")}},
             &out->comm_library);
  top.Text("comm_library_path", false, &out->comm_library_path);
  if (const YAML::Node node = top.Map("tls", true); node.IsDefined()) {
    Section tls(node, file, "tls.", &error);
    tls.Text("ca", true, &out->tls.ca);
    tls.Text("cert", true, &out->tls.cert);
    tls.Text("key", true, &out->tls.key);
    tls.RefuseOthers();
  }
  top.Flag("insecure_fabric", &out->insecure_fabric);
  if (const YAML::Node node = top.Map("log", false); node.IsDefined()) {
    Section log(node, file, "log.", &error);
    log.Text("level", false, &out->log_level);
    log.Flag("json", &out->log_json);
    log.RefuseOthers();
  }
  top.RefuseOthers();
  return error;
}

Status CheckValues(const std::string& file, AgentConfig* config) {
  const auto bad = [&](const std::string& key, const std::string& why) {
    return Status(Code::kInvalid, file + ": " + key + ": " + why);
  };
  for (const auto& [key, value] :
       {std::pair<const char*, const std::string&>{"listen", config->listen},
        {"data_listen", config->data_listen},
        {"metrics_listen", config->metrics_listen}}) {
    if (std::string(key) == "metrics_listen" && value.empty()) continue;
    if (auto parsed = net::ParseHostPort(value); !parsed.ok())
      return bad(key, parsed.status().message());
  }
  // These become parts of a URI and of member ids, so they must not contain the separators.
  for (const auto& [key, value] :
       {std::pair<const char*, const std::string&>{"world", config->world},
        {"pod", config->pod},
        {"pod_uid", config->pod_uid}}) {
    const bool plain = std::all_of(value.begin(), value.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
    if (!plain) {
      return bad(key, "'" + value + "' must consist of letters, digits, '-', '_' and '.'");
    }
  }
  static const std::set<std::string> kLevels{"trace", "debug", "info", "warn", "error", "off"};
  if (!kLevels.contains(config->log_level)) {
    return bad("log.level",
               "'" + config->log_level + "' is not one of trace, debug, info, warn, error, off");
  }
  if (config->engine_socket.size() > 100) {
    return bad("engine_socket", "must be a path of at most 100 bytes, is one of " +
                                    std::to_string(config->engine_socket.size()));
  }
  // It is followed by an address and a port in the path of a socket.
  if (config->node_socket_dir.size() > 50) {
    return bad("node_socket_dir", "must be a path of at most 50 bytes, is one of " +
                                      std::to_string(config->node_socket_dir.size()));
  }
  if (config->hashes_file.empty() && !config->in_world_file.empty()) {
    config->hashes_file = config->in_world_file + ".hashes";
  }
  if (config->advertise.empty()) config->advertise = net::ParseHostPort(config->listen)->host;
  return OkStatus();
}

}  // namespace

Result<AgentConfig> ParseConfig(const std::string& text, const std::string& file,
                                const Overrides& overrides) {
  AgentConfig config;
  try {
    YAML::Node root = YAML::Load(text);
    for (const std::string& override : overrides) {
      const size_t equals = override.find('=');
      if (equals == 0 || equals == std::string::npos) {
        return Status{Code::kInvalid, "--set " + override + ": must be KEY=VALUE"};
      }
      if (root.IsMap()) root[override.substr(0, equals)] = override.substr(equals + 1);
    }
    TANGRAM_RETURN_IF_ERROR(Read(root, file, &config));
  } catch (const YAML::Exception& e) {
    return Status{Code::kInvalid, file + ":" + std::to_string(e.mark.line + 1) + ": " + e.msg};
  }
  TANGRAM_RETURN_IF_ERROR(CheckValues(file, &config));
  return config;
}

Result<AgentConfig> LoadConfig(const std::string& file, const Overrides& overrides) {
  auto text = ReadWholeFile(file);
  if (!text.ok()) return text.status();
  return ParseConfig(*text, file, overrides);
}

}  // namespace tangram
