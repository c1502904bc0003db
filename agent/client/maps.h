// tg_maps of a layout: for each layer and expert the alternatives and their pieces, and the
// attention groups. Owns every array that the C structs point into.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"
#include "agent/layout/layout.h"
#include "tangram/v1/agent.pb.h"

namespace tangram {

class Maps {
 public:
  // `hash` is the layout's, `member` this engine's. Errors as of layout::Validate.
  static Result<std::unique_ptr<Maps>> Build(
      std::shared_ptr<const v1::Layout> layout, std::string hash,
      const layout::GeometryView& geometry, const std::string& member,
      const google::protobuf::RepeatedPtrField<v1::PeerAddress>& peers);

  // Points my pieces into the bank range. Called at the flip.
  void Resolve(const uint8_t* banks, const layout::GeometryView& geometry);

  const tg_maps* get() const { return &maps_; }
  const std::string& hash() const { return hash_; }
  const v1::Layout& layout() const { return *layout_; }

 private:
  Maps() = default;
  Status AddExperts(const v1::LayerLayout& layer, const layout::GeometryView& geometry,
                    tg_layer_map* out);
  void AddAttention(const v1::LayerLayout& layer, tg_layer_map* out);

  tg_maps maps_{};
  std::string hash_;
  std::shared_ptr<const v1::Layout> layout_;
  std::vector<std::string> text_;
  std::vector<const char*> members_, mesh_, frontends_, pods_;
  std::vector<tg_layer_map> layers_;
  // One block per layer; the structs above point into them, so they never grow once built.
  std::vector<std::vector<tg_piece>> pieces_;
  std::vector<std::vector<tg_expert>> experts_;
  std::vector<std::vector<tg_attention_group>> groups_;
  std::vector<std::vector<uint32_t>> numbers_;
  std::vector<tg_piece*> mine_;  // my pieces, in the order of layout::InOrder
};

}  // namespace tangram
