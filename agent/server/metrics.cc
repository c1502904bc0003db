#include "agent/server/metrics.h"

#include <google/protobuf/generated_enum_reflection.h>
#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <cctype>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>

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

}  // namespace

std::vector<prometheus::MetricFamily> AgentMetrics::Collect() const {
  using prometheus::MetricType;
  const v1::StatusResponse status = executor_->GetStatus(nullptr);
  const Executor::Totals totals = executor_->GetTotals();

  Family epoch("tangram_epoch", "Epoch in force, 0 before the first layout.", MetricType::Gauge);
  epoch.Add(static_cast<double>(status.epoch()));
  Family memory("tangram_memory_bytes", "Weights memory of a rank.", MetricType::Gauge);
  Family kind("tangram_memory_info", "What weights and KV lie in, as labels.", MetricType::Gauge);
  const v1::MemoryInfo& info = status.memory_info();
  kind.Add(1, {{"memory", status.memory()},
               {"platform", info.platform()},
               {"device", info.device()},
               {"capability", info.capability()},
               {"driver", info.driver()}});
  Family wire("tangram_wire_info",
              "Communication library between agents, as a label; empty: bytes go by TCP.",
              MetricType::Gauge);
  wire.Add(1, {{"wire", status.address().comm_library()}});
  Family engine("tangram_engine_attached", "1 while an engine is attached.", MetricType::Gauge);
  Family phase("tangram_transition_phase", "Phase of the rank's attempt (v1.Phase).",
               MetricType::Gauge);
  Family tokens("tangram_expert_tokens_total",
                "Tokens that this rank, as the source, routed to experts, by layer.",
                MetricType::Counter);
  Family executed("tangram_expert_tokens_executed_total",
                  "Tokens that this rank computed with its pieces of experts, by layer.",
                  MetricType::Counter);
  for (const v1::RankStatus& rank : status.ranks()) {
    const std::string device = std::to_string(rank.device());
    memory.Add(static_cast<double>(rank.memory_bytes()), {{"device", device}, {"kind", "total"}});
    memory.Add(static_cast<double>(rank.memory_free()), {{"device", device}, {"kind", "free"}});
    memory.Add(static_cast<double>(rank.memory_mapped()), {{"device", device}, {"kind", "mapped"}});
    engine.Add(rank.engine().attached() ? 1 : 0, {{"device", device}});
    phase.Add(rank.transition().phase(), {{"device", device}});
    const uint32_t experts = status.geometry().experts();
    const auto add = [&](Family& family, TokenCount what) {
      const std::vector<uint64_t> counters = executor_->Counters(rank.device(), what);
      // By layer, not by expert: 58 x 256 series of a rank are nobody's to keep. Who places experts
      // asks for their counters (Load).
      for (size_t first = 0; first < counters.size(); first += experts) {
        const auto layer = counters.begin() + static_cast<int64_t>(first);
        const uint64_t sum = std::accumulate(layer, layer + experts, uint64_t{0});
        if (sum == 0) continue;  // a series exists once there was a token
        const int ordinal = static_cast<int>(first / experts);
        family.Add(
            static_cast<double>(sum),
            {{"device", device}, {"layer", std::to_string(status.geometry().moe_layers(ordinal))}});
      }
    };
    add(tokens, TokenCount::kRouted);
    add(executed, TokenCount::kExecuted);
  }
  Family missed("tangram_missed_ranks_total",
                "Ranks for which the rank's engine gave a step up, by what it found of them and "
                "what it was doing with them.",
                MetricType::Counter);
  for (const v1::RankStatus& rank : status.ranks()) {
    const std::vector<uint64_t> counts = executor_->MissedRanks(rank.device());
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      missed.Add(static_cast<double>(counts[i]),
                 {{"device", std::to_string(rank.device())},
                  {"cause", WordOf<v1::Cause>(i / GatePage::kDoings)},
                  {"doing", WordOf<v1::Doing>(i % GatePage::kDoings)}});
    }
  }
  Family bytes("tangram_moved_bytes_total", "Bytes brought by ended attempts, by source.",
               MetricType::Counter);
  bytes.Add(static_cast<double>(totals.local), {{"source", "local"}});
  bytes.Add(static_cast<double>(totals.shared), {{"source", "shared"}});
  bytes.Add(static_cast<double>(totals.tcp), {{"source", "tcp"}});
  bytes.Add(static_cast<double>(totals.wire), {{"source", "wire"}});
  bytes.Add(static_cast<double>(totals.checkpoint), {{"source", "checkpoint"}});
  bytes.Add(static_cast<double>(totals.kv), {{"source", "kv"}});
  Family ahead(
      "tangram_kv_ahead_bytes_total",
      "Of the KV of ended attempts, bytes that came while engines stepped, before the flip.",
      MetricType::Counter);
  ahead.Add(static_cast<double>(totals.kv_ahead));
  Family ways("tangram_way_bytes_total",
              "Bytes that ended attempts brought from other ranks, by the way that they came.",
              MetricType::Counter);
  for (const auto& [of, by_way] :
       {std::pair("weights", totals.weights_by_way), std::pair("kv", totals.kv_by_way)}) {
    for (const auto& [way, count] : by_way) {
      ways.Add(static_cast<double>(count), {{"way", way}, {"of", of}});
    }
  }
  Family seconds("tangram_phase_seconds_total", "Seconds spent in phases of ended attempts.",
                 MetricType::Counter);
  seconds.Add(totals.prepare_seconds, {{"phase", "prepare"}});
  seconds.Add(totals.stage_seconds, {{"phase", "stage"}});
  seconds.Add(totals.flip_seconds, {{"phase", "flip"}});
  Family ended("tangram_transitions_total", "Attempts by outcome.", MetricType::Counter);
  for (const char* outcome : {"flipped", "aborted", "refused"}) {
    const auto it = totals.outcomes.find(outcome);
    ended.Add(it == totals.outcomes.end() ? 0 : static_cast<double>(it->second),
              {{"outcome", outcome}});
  }
  Family corrupt("tangram_corrupt_pulls_total",
                 "Pulls of ended attempts that broke off at bytes that differ from their hash.",
                 MetricType::Counter);
  corrupt.Add(static_cast<double>(totals.corrupt));
  Family certificate("tangram_certificate_days_left",
                     "Days until the certificate in the agent's file ends.", MetricType::Gauge);
  if (const auto end = net::EndOf(cert_); end.ok()) {
    using Days = std::chrono::duration<double, std::ratio<86400>>;
    certificate.Add(Days(*end - std::chrono::system_clock::now()).count());
  }
  std::vector<prometheus::MetricFamily> out;
  for (Family* family : {&certificate, &epoch, &memory, &kind, &wire, &engine, &phase, &tokens,
                         &executed, &missed, &bytes, &ways, &seconds, &ended, &corrupt}) {
    out.push_back(family->Take());
  }
  return out;
}

}  // namespace tangram
