#include "agent/server/log.h"

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

namespace tangram {
namespace {

// One JSON object a line. nlohmann escapes; a %v inside quotes would not.
class JsonFormatter : public spdlog::formatter {
 public:
  JsonFormatter(std::string world, std::string pod)
      : world_(std::move(world)), pod_(std::move(pod)) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    const auto since = msg.time.time_since_epoch();
    const auto level = spdlog::level::to_string_view(msg.level);
    const nlohmann::ordered_json line = {
        {"time", std::chrono::duration<double>(since).count()},
        {"level", std::string(level.data(), level.size())},
        {"world", world_},
        {"pod", pod_},
        {"msg", std::string(msg.payload.data(), msg.payload.size())}};
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    dest.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(world_, pod_);
  }

 private:
  std::string world_, pod_;
};

}  // namespace

void SetUpLog(const AgentConfig& config) {
  auto logger = spdlog::stderr_color_mt("agent");
  logger->set_level(
      spdlog::level::from_str(config.log_level == "warn" ? "warning" : config.log_level));
  if (config.log_json) {
    logger->set_formatter(std::make_unique<JsonFormatter>(config.world, config.pod));
  }
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

}  // namespace tangram
