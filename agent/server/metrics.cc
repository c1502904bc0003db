#include "agent/server/metrics.h"

#include <google/protobuf/generated_enum_reflection.h>
#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <cctype>
#include <chrono>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "agent/net/credentials.h"

namespace tangram {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// "CAUSE_GAVE_UP" as "gave_up".
template <typename Enum>
std::string WordOf(size_t value) {
  const std::string& name =
      google::protobuf::GetEnumDescriptor<Enum>()->value(static_cast<int>(value))->name();
  std::string out = name.substr(name.find('_') + 1);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

class Family {
 public:
  Family(const char* name, const char* help, prometheus::MetricType type) {
    family_.name = name;
    family_.help = help;
    family_.type = type;
  }
  void Add(double value, const Labels& labels = {}) {
    prometheus::ClientMetric metric;
    for (const auto& [name, text] : labels) metric.label.push_back({name, text});
    metric.gauge.value = value;
    metric.counter.value = value;
    family_.metric.push_back(std::move(metric));
  }
  prometheus::MetricFamily Take() { return std::move(family_); }

 private:
  prometheus::MetricFamily family_;
};

// One series for each value of an enum: 1 for the current one, 0 for the others.
template <typename Enum>
void AddStates(Family* family, Enum current, const std::string& device) {
  const auto* descriptor = google::protobuf::GetEnumDescriptor<Enum>();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const int number = descriptor->value(i)->number();
    if (number == 0) continue;  // unspecified
    family->Add(number == static_cast<int>(current) ? 1 : 0,
                {{"device", device}, {"phase", WordOf<Enum>(static_cast<size_t>(i))}});
  }
}

// Bytes from other ranks by transport, and bytes from other sources. All communication libraries
// count as one transport: tangram_agent_comm_library_info names the one in use.
void AddReceived(Family* family, const std::string& content,
                 const std::map<std::string, uint64_t>& from_ranks,
                 std::map<std::string, uint64_t> bytes) {
  for (const char* transport : {"process", "node", "tcp", "comm"}) bytes.try_emplace(transport, 0);
  for (const auto& [name, count] : from_ranks) {
    bytes[name == "process" || name == "node" || name == "tcp" ? name : "comm"] += count;
  }
  for (const auto& [transport, count] : bytes) {
    family->Add(static_cast<double>(count), {{"content", content}, {"transport", transport}});
  }
}

}  // namespace

std::vector<prometheus::MetricFamily> AgentMetrics::Collect() const {
  using prometheus::MetricType;
  const v1::StatusResponse status = executor_->GetStatus(nullptr);
  const Executor::Totals totals = executor_->GetTotals();

  Family build("tangram_agent_build_info", "The label shows the version of the agent.",
               MetricType::Gauge);
  build.Add(1, {{"version", TANGRAM_VERSION}});
  Family epoch("tangram_agent_epoch", "Epoch of the active layout, and 0 before the first layout.",
               MetricType::Gauge);
  epoch.Add(static_cast<double>(status.epoch()));
  Family memory("tangram_agent_memory_capacity_bytes",
                "Size of the memory for the weights of a rank.", MetricType::Gauge);
  Family free_memory("tangram_agent_memory_free_bytes",
                     "Free part of the memory for the weights of a rank.", MetricType::Gauge);
  Family mapped_memory("tangram_agent_memory_mapped_bytes",
                       "Mapped part of the memory for the weights of a rank.", MetricType::Gauge);
  Family memory_info("tangram_agent_memory_info",
                     "The labels describe the memory that holds the weights and the KV cache.",
                     MetricType::Gauge);
  const v1::MemoryInfo& info = status.memory_info();
  memory_info.Add(1, {{"platform", info.platform()},
                      {"pages", info.pages()},
                      {"device_name", info.device()},
                      {"capability", info.capability()},
                      {"driver", info.driver()}});
  Family library("tangram_agent_comm_library_info",
                 "The label names the communication library that the agent has loaded.",
                 MetricType::Gauge);
  if (const std::string& name = status.address().comm_library(); !name.empty()) {
    library.Add(1, {{"library", name}});
  }
  Family engine("tangram_agent_engine_attached",
                "The gauge is 1 while an engine is attached to the rank.", MetricType::Gauge);
  Family phase("tangram_agent_attempt_phase",
               "The gauge is 1 for the current phase of the rank's attempt, and 0 for the others.",
               MetricType::Gauge);
  Family tokens("tangram_agent_expert_tokens_total",
                "Tokens that the rank routed to experts, by layer.", MetricType::Counter);
  Family executed("tangram_agent_expert_tokens_executed_total",
                  "Tokens that the experts of the rank computed, by layer.", MetricType::Counter);
  for (const v1::RankStatus& rank : status.ranks()) {
    const std::string device = std::to_string(rank.device());
    memory.Add(static_cast<double>(rank.memory_bytes()), {{"device", device}});
    free_memory.Add(static_cast<double>(rank.memory_free()), {{"device", device}});
    mapped_memory.Add(static_cast<double>(rank.memory_mapped()), {{"device", device}});
    engine.Add(rank.engine().attached() ? 1 : 0, {{"device", device}});
    AddStates<v1::Phase>(&phase, rank.transition().phase(), device);
    const uint32_t experts = status.geometry().experts();
    const auto add = [&](Family& family, TokenCount what) {
      const std::vector<uint64_t> counters = executor_->Counters(rank.device(), what);
      // By layer, not by expert: 58 x 256 series per rank are too many. The operator reads the
      // counters of experts by a call (ExpertLoad).
      for (size_t first = 0; first < counters.size(); first += experts) {
        const auto layer = counters.begin() + static_cast<int64_t>(first);
        const uint64_t sum = std::accumulate(layer, layer + experts, uint64_t{0});
        if (sum == 0) continue;  // a series exists after its first token
        const int ordinal = static_cast<int>(first / experts);
        family.Add(
            static_cast<double>(sum),
            {{"device", device}, {"layer", std::to_string(status.geometry().moe_layers(ordinal))}});
      }
    };
    add(tokens, TokenCount::kRouted);
    add(executed, TokenCount::kExecuted);
  }
  Family unresponsive("tangram_agent_unresponsive_ranks_total",
                      "Ranks for which the rank's engine abandoned a step, "
                      "by cause and activity.",
                      MetricType::Counter);
  for (const v1::RankStatus& rank : status.ranks()) {
    const std::vector<uint64_t> counts = executor_->MissedRanks(rank.device());
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      unresponsive.Add(static_cast<double>(counts[i]),
                       {{"device", std::to_string(rank.device())},
                        {"cause", WordOf<v1::Cause>(i / GatePage::kDoings)},
                        {"doing", WordOf<v1::Doing>(i % GatePage::kDoings)}});
    }
  }
  Family received("tangram_agent_received_bytes_total",
                  "Bytes that ended attempts fetched into the memory of the agent's ranks, by "
                  "content and transport.",
                  MetricType::Counter);
  AddReceived(&received, "weights", totals.weights_by_way,
              {{"checkpoint", totals.checkpoint}, {"local", totals.local}});
  AddReceived(&received, "kv", totals.kv_by_way, {});
  Family ahead("tangram_agent_kv_ahead_bytes_total",
               "Part of the received KV cache that came before the flip, "
               "while the engines executed steps.",
               MetricType::Counter);
  ahead.Add(static_cast<double>(totals.kv_ahead));
  Family seconds("tangram_agent_attempt_phase_seconds_total",
                 "Seconds that ended attempts spent in each phase.", MetricType::Counter);
  seconds.Add(totals.prepare_seconds, {{"phase", "prepare"}});
  seconds.Add(totals.stage_seconds, {{"phase", "stage"}});
  seconds.Add(totals.flip_seconds, {{"phase", "flip"}});
  Family ended("tangram_agent_attempts_total", "Attempts that ended, by outcome.",
               MetricType::Counter);
  for (const char* outcome : {"flipped", "aborted", "refused"}) {
    const auto it = totals.outcomes.find(outcome);
    ended.Add(it == totals.outcomes.end() ? 0 : static_cast<double>(it->second),
              {{"outcome", outcome}});
  }
  Family corrupt("tangram_agent_corrupt_fetches_total",
                 "Fetches of ended attempts that stopped because the bytes "
                 "did not match their hash.",
                 MetricType::Counter);
  corrupt.Add(static_cast<double>(totals.corrupt));
  Family certificate("tangram_agent_certificate_expiration_timestamp_seconds",
                     "Unix time at which the agent's certificate expires.", MetricType::Gauge);
  if (const auto end = net::EndOf(cert_); end.ok()) {
    certificate.Add(std::chrono::duration<double>(end->time_since_epoch()).count());
  }
  std::vector<prometheus::MetricFamily> out;
  for (Family* family : {&build, &certificate, &epoch, &memory, &free_memory, &mapped_memory,
                         &memory_info, &library, &engine, &phase, &tokens, &executed, &unresponsive,
                         &received, &ahead, &seconds, &ended, &corrupt}) {
    out.push_back(family->Take());
  }
  return out;
}

}  // namespace tangram
