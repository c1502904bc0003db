#include "e2e/engine/model/checkpoint.h"

namespace tangram::model {
namespace {

constexpr uint64_t kAnyPage = 4096;  // any value works: nothing is mapped here

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir,
                                                     uint32_t granule_rows) {
  std::unique_ptr<Checkpoint> c(new Checkpoint);
  auto files = loader::Checkpoint::Open(dir, granule_rows, kAnyPage);
  if (!files.ok()) return files.status();
  c->files_ = std::move(files).value();
  Result<Config> config = ParseConfig(c->files_->config_json());
  if (!config.ok()) return config.status();
  c->config_ = *config;
  const v1::Geometry& g = c->files_->geometry().proto();
  TANGRAM_RETURN_IF_ERROR(CheckExperts({static_cast<uint32_t>(g.dtype()), g.granule_rows(),
                                        g.hidden(), g.granule_bytes(), g.expert_tail_bytes()}));
  const auto& dense = c->files_->dense();
  for (size_t i = 0; i < dense.size(); ++i) {
    std::vector<std::byte>& bytes = c->dense_bytes_.emplace_back(dense[i].info.bytes);
    TANGRAM_RETURN_IF_ERROR(c->files_->ReadDense(i, bytes));
    c->dense_.push_back({dense[i].name, static_cast<DType>(dense[i].info.dtype),
                         dense[i].info.shape, bytes.data()});
  }
  const layout::GeometryView& geometry = c->files_->geometry();
  for (const uint32_t layer : geometry.proto().moe_layers()) {
    for (uint32_t e = 0; e < geometry.experts(); ++e) {
      std::vector<std::byte>& bytes = c->experts_.emplace_back(geometry.expert_bytes());
      TANGRAM_RETURN_IF_ERROR(c->files_->ReadGranules(layer, e, {0, geometry.granules()}, bytes));
    }
  }
  return c;
}

ExpertRun Checkpoint::Run(uint32_t layer, uint32_t expert, uint32_t begin, uint32_t count) const {
  const layout::GeometryView& geometry = files_->geometry();
  const size_t at = static_cast<size_t>(geometry.ordinal(layer)) * geometry.experts() + expert;
  return {experts_[at].data() + begin * geometry.granule_bytes(), count, granule_rows(),
          geometry.granule_bytes(), dtype()};
}

}  // namespace tangram::model
