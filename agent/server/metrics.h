// What Prometheus scrapes, made from the executor's status at the time of the scrape.
#pragma once

#include <prometheus/collectable.h>

#include <vector>

#include "agent/transition/executor.h"

namespace tangram {

class AgentMetrics : public prometheus::Collectable {
 public:
  explicit AgentMetrics(Executor* executor) : executor_(executor) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  Executor* const executor_;
};

}  // namespace tangram
