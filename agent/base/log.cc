#include "agent/base/log.h"

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

namespace tangram {
namespace {

// One JSON object per line. nlohmann escapes; a %v inside quotes would not.
class JsonFormatter : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::vector<std::pair<std::string, std::string>> fields)
      : fields_(std::move(fields)) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    const auto since = msg.time.time_since_epoch();
    const auto level = spdlog::level::to_string_view(msg.level);
    nlohmann::ordered_json line = {{"time", std::chrono::duration<double>(since).count()},
                                   {"level", std::string(level.data(), level.size())}};
    for (const auto& [key, value] : fields_) line[key] = value;
    line["msg"] = std::string(msg.payload.data(), msg.payload.size());
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    dest.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(fields_);
  }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace

void SetUpLog(const std::string& name, const std::string& level, bool json,
              std::vector<std::pair<std::string, std::string>> fields) {
  auto logger = spdlog::stderr_color_mt(name);
  logger->set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
  if (json) logger->set_formatter(std::make_unique<JsonFormatter>(std::move(fields)));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

}  // namespace tangram
