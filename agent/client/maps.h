// tg_maps of a layout: the replicas and pieces of each layer and expert, and the attention groups.
// Owns every array that the C structs point into. An unchanged layer shares its arrays with the
// maps of the previous layout, because a flip of a mode switch changes a few layers of many.
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
  // `hash` is the layout's, `member` this engine's. `before` may be null; parts shared with it
  // outlive it. Errors as of layout::Validate.
  static Result<std::unique_ptr<Maps>> Build(
      std::shared_ptr<const v1::Layout> layout, std::string hash,
      const layout::GeometryView& geometry, const std::string& member,
      const google::protobuf::RepeatedPtrField<v1::PeerAddress>& peers,
      const Maps* before = nullptr);

  // Points my pieces into the bank range. Called at the flip; does not write to layers of the
  // previous maps, as a step may be reading them.
  void Resolve(const uint8_t* banks, const layout::GeometryView& geometry);

  const tg_maps* get() const { return &maps_; }
  const std::string& hash() const { return hash_; }
  const v1::Layout& layout() const { return *layout_; }

 private:
  // One layer. The structs point into its vectors, so they never grow once built.
  struct Layer {
    std::string wire;  // of the layer's layout, to detect an equal one
    tg_layer_map map{};
    std::vector<tg_piece> pieces;
    std::vector<tg_expert> experts;
    std::vector<tg_attention_group> groups;
    std::vector<uint32_t> numbers;
    std::vector<tg_piece*> mine;  // my pieces, in the order of layout::InOrder
    bool resolved = false;
  };

  Maps() = default;
  // Whether layers of the other maps can be shared: ranks are the same members.
  bool SameRanks(const Maps& other) const;
  static Status AddExperts(const v1::LayerLayout& layer, const layout::GeometryView& geometry,
                           int32_t rank, Layer* out);
  static void AddAttention(const v1::LayerLayout& layer, Layer* out);

  tg_maps maps_{};
  std::string hash_;
  std::shared_ptr<const v1::Layout> layout_;
  std::vector<std::string> text_;
  std::vector<const char*> members_, mesh_, frontends_, pods_;
  std::vector<std::shared_ptr<Layer>> parts_;  // by layer
  std::vector<tg_layer_map> layers_;
};

}  // namespace tangram
