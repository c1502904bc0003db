// World::Check: every byte, compared with an independent, slow read of the checkpoint.
#include <fmt/format.h>

#include "agent/layout/testing.h"
#include "agent/store/testing/world.h"

namespace tangram::store::testing {

using layout::PlacedPiece;
using layout::Run;

namespace {

Status Wrong(std::string message) { return {Code::kInternal, std::move(message)}; }

}  // namespace

const World::Truth& World::TruthOf(uint32_t layer, uint32_t expert, Run run) {
  Truth& out = truths_[{layer, expert, run.start, run.count}];
  if (!out.in_order.empty()) return out;
  const bool rows = geometry().row_major();
  for (uint32_t g = run.start; g < run.start + run.count; ++g) {
    out.in_order +=
        rows ? reference_->Rows(layer, expert, g, 1) : reference_->Granule(layer, expert, g);
  }
  const std::string tail = reference_->Tail(layer, expert);
  out.in_slab =
      rows ? reference_->Rows(layer, expert, run.start, run.count) + tail : out.in_order + tail;
  out.in_order += tail;
  return out;
}

Status World::Check() {
  const uint64_t page = geometry().page_bytes();
  for (const auto& member : members) {
    RankStore& store = *member->store;
    TANGRAM_RETURN_IF_ERROR(store.Audit());
    const int32_t rank = layout::RankOf(layout, member->id);
    const std::vector<PlacedPiece> pieces =
        rank < 0 ? std::vector<PlacedPiece>()
                 : layout::PiecesOf(layout, geometry(), static_cast<uint32_t>(rank));
    const v1::Inventory held = store.Held();
    if (static_cast<size_t>(held.layer_size()) != pieces.size() || held.dense() != (rank >= 0)) {
      return Wrong(fmt::format("{} holds {} pieces (dense: {}), the layout gives it {}", member->id,
                               held.layer_size(), held.dense(), pieces.size()));
    }
    EngineView fresh(platform);  // an engine that attaches now
    fresh.Map(store.CurrentMappings().value(), page);
    if (!(fresh == member->engine)) {
      return Wrong(member->id + ": what its engine was told step by step is not what is mapped");
    }
    const MemoryFigures memory = store.Memory();
    const uint64_t dense = rank < 0 ? 0 : layout::RoundUp(geometry().proto().dense_bytes(), page);
    if (memory.mapped != layout::testing::PagesOf(pieces, geometry()).size() * page + dense ||
        memory.free + memory.mapped != memory.total) {
      return Wrong(fmt::format("{}: {} mapped + {} free of {}", member->id, memory.mapped,
                               memory.free, memory.total));
    }
    for (const PlacedPiece& piece : pieces) {
      const Truth& want = TruthOf(piece.layer, piece.expert, piece.run);
      std::string have;
      const auto add = [&](const device::Memory& memory) {
        const size_t before = have.size();
        have.resize(before + memory.bytes);
        const device::CopyOp copy{
            device::Memory::Own(std::as_writable_bytes(std::span(have).subspan(before))), memory};
        if (memory.bytes > 0) (void)memory.device->Copy({&copy, 1}).Wait();
      };
      for (uint32_t g = piece.run.start; g < piece.run.start + piece.run.count; ++g) {
        add(store.Granule(piece.layer, piece.expert, g));
      }
      add(store.Tail(piece.layer, piece.expert));
      if (have != want.in_order ||
          member->engine.Read(piece.bank, piece.offset, piece.bytes, page) != want.in_slab) {
        return Wrong(
            fmt::format("{}: layer {}, expert {}, granules {}..{} differ from the "
                        "checkpoint{}",
                        member->id, piece.layer, piece.expert, piece.run.start,
                        piece.run.start + piece.run.count,
                        have == want.in_order ? " in the engine's view" : ""));
      }
    }
    if (rank < 0) continue;
    for (size_t t = 0; t < checkpoint->dense().size(); ++t) {
      const loader::DenseTensor& tensor = checkpoint->dense()[t];
      std::vector<std::byte> want(tensor.info.bytes);
      TANGRAM_RETURN_IF_ERROR(checkpoint->ReadDense(t, want));
      const std::string have = member->engine.Read(kDenseBank, tensor.offset, want.size(), page);
      if (have != std::string(reinterpret_cast<const char*>(want.data()), want.size())) {
        return Wrong(fmt::format("{}: dense tensor '{}' differs", member->id, tensor.name));
      }
    }
  }
  return OkStatus();
}

}  // namespace tangram::store::testing
