// Prometheus metrics, collected from the executor's status at the time of the scrape.
#pragma once

#include <prometheus/collectable.h>

#include <string>
#include <utility>
#include <vector>

#include "agent/transition/executor.h"

namespace tangram {

class AgentMetrics : public prometheus::Collectable {
 public:
  // `cert`: PEM file of the agent's certificate.
  AgentMetrics(Executor* executor, std::string cert)
      : executor_(executor), cert_(std::move(cert)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  Executor* const executor_;
  const std::string cert_;
};

}  // namespace tangram
