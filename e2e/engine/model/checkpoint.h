// A checkpoint that is read completely into this process, for the oracle and tests. It uses the
// agents' loader, so the golden files also verify that loader.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/loader/checkpoint.h"
#include "e2e/engine/model/config.h"
#include "e2e/engine/model/model.h"
#include "e2e/engine/model/tensor.h"

namespace tangram::model {

class Checkpoint {
 public:
  // Every routed expert is stored granule-major, with `granule_rows` rows per granule (must divide
  // moe_intermediate_size).
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& dir, uint32_t granule_rows);

  const Config& config() const { return config_; }
  const std::string& config_json() const { return files_->config_json(); }
  uint32_t granule_rows() const { return files_->geometry().proto().granule_rows(); }
  uint64_t granule_bytes() const { return files_->geometry().granule_bytes(); }
  // The dtype of the experts.
  DType dtype() const { return static_cast<DType>(files_->geometry().proto().dtype()); }
  uint32_t granules() const { return files_->geometry().granules(); }
  // All tensors outside the routed experts, by name.
  const std::vector<DenseTensor>& dense() const { return dense_; }
  // Granules [begin, begin + count) of an expert.
  ExpertRun Run(uint32_t layer, uint32_t expert, uint32_t begin, uint32_t count) const;

 private:
  Checkpoint() = default;

  std::shared_ptr<const loader::Checkpoint> files_;
  Config config_;
  std::vector<DenseTensor> dense_;
  std::vector<std::vector<std::byte>> dense_bytes_;
  std::vector<std::vector<std::byte>> experts_;  // [MoE ordinal * experts + expert]
};

}  // namespace tangram::model
