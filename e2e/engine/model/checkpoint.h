// A checkpoint read whole into this process, for the oracle and tests. The agents load
// through agent/loader, which checks files that nobody trusts; this reader maps the shards
// of a checkpoint that the caller made.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "e2e/engine/model/config.h"
#include "e2e/engine/model/model.h"
#include "e2e/engine/model/tensor.h"

namespace tangram::model {

class Checkpoint {
 public:
  // Maps the shards named by model.safetensors.index.json and lays every routed expert out
  // granule-major with `granule_rows` rows a granule (must divide moe_intermediate_size).
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& dir, uint32_t granule_rows);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const Config& config() const { return config_; }
  const std::string& config_json() const { return config_json_; }
  uint32_t granule_rows() const { return granule_rows_; }
  uint32_t granules() const { return config_.moe_inner / granule_rows_; }
  // All tensors outside the routed experts, by name.
  const std::vector<DenseTensor>& dense() const { return dense_; }
  // Granules [begin, begin + count) of an expert.
  ExpertRun Run(uint32_t layer, uint32_t expert, uint32_t begin, uint32_t count) const;

 private:
  struct Mapping {
    void* data = nullptr;
    size_t size = 0;
  };
  Checkpoint() = default;
  Status MapShard(const std::string& path);
  Status LayOutExperts();

  Config config_;
  std::string config_json_;
  uint32_t granule_rows_ = 0;
  DType expert_dtype_ = DType::kBf16;
  std::vector<Mapping> mappings_;
  std::map<std::string, DenseTensor> tensors_;
  std::vector<DenseTensor> dense_;
  // [layers][experts]: granule-major bytes; empty for a layer without experts.
  std::vector<std::vector<std::vector<std::byte>>> experts_;
};

}  // namespace tangram::model
