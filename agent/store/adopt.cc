// RankStore::Examine and Adopt: the memory of a rank outlives its agent in the hands of its engine.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "agent/store/rank_store.h"

namespace tangram::store {
namespace {

// What the engine has mapped, by address in the range of the banks.
class Mapped {
 public:
  Mapped(const memory::Banks& banks,
         const google::protobuf::RepeatedPtrField<v1::Mapping>& mappings) {
    for (const v1::Mapping& mapping : mappings) {
      uint64_t address = banks.AddressOf(mapping.dense(), mapping.bank(), mapping.offset());
      for (const v1::Extent& extent : mapping.extents()) {
        if (extent.fd_index() == 0) runs_[address] = {extent.offset(), extent.length()};
        address += extent.length();
      }
    }
  }

  Result<std::vector<device::Extent>> Find(uint64_t address, uint64_t bytes) const {
    std::vector<device::Extent> out;
    while (bytes > 0) {
      auto it = runs_.upper_bound(address);
      const bool before = it != runs_.begin();
      if (before) --it;
      const uint64_t skip = before ? address - it->first : 0;
      if (!before || skip >= it->second.length) {
        return Status{Code::kInvalid,
                      fmt::format("the engine has nothing mapped at {} of the banks", address)};
      }
      const uint64_t take = std::min(bytes, it->second.length - skip);
      out.push_back({it->second.offset + skip, take});
      address += take;
      bytes -= take;
    }
    return out;
  }

 private:
  std::map<uint64_t, device::Extent> runs_;
};

}  // namespace

struct RankStore::Kept final : RankMemory::Adoption {
  Memories memories;
  std::string member;
  std::vector<Piece> pieces;
  std::vector<uint64_t> dense_hashes;
  bool dense = false;

  void* control() override { return device::View(memories.control.memory).data(); }
};

// Nobody writes there meanwhile: the agent that did is dead, and the engine only reads.
Status RankStore::Verify(Kept* kept, const std::vector<layout::PlacedPiece>& places,
                         const std::stop_token& stop) const {
  if (places.empty() && !kept->dense) return OkStatus();
  if (!hashes_) {
    return {Code::kInvalid,
            "without a hashes_file nobody knows what the weights were when they were loaded"};
  }
  auto noted = hashes_->Read();
  if (!noted.ok()) return noted.status();
  const auto check = [](const device::Memory& memory, uint64_t hash, const auto& what) -> Status {
    if (hash == 0) {
      return {Code::kInvalid, fmt::format("{}: its hash was not kept when it was loaded", what())};
    }
    uint64_t is = 0;
    TANGRAM_RETURN_IF_ERROR(device::HashNow(memory, &is));
    if (is == hash) return OkStatus();
    return {Code::kCorrupt, fmt::format("{} has changed since it was loaded", what())};
  };
  for (const layout::PlacedPiece& place : places) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    Piece piece(place, geometry().tail_bytes() > 0);
    const device::Memory at = kept->memories.banks->At(place.bank, place.offset, place.bytes);
    for (uint32_t i = 0; i < place.run.count; ++i) {
      const uint32_t granule = place.run.start + i;
      piece.hashes[i] = noted->Granule(place.layer, place.expert, granule);
      TANGRAM_RETURN_IF_ERROR(check(GranulesIn(at, place.run, granule, 1), piece.hashes[i], [&] {
        return fmt::format("layer {}, expert {}, granule {}", place.layer, place.expert, granule);
      }));
    }
    if (const uint64_t tail = geometry().tail_bytes(); tail > 0) {
      piece.hashes.back() = noted->Tail(place.layer, place.expert);
      TANGRAM_RETURN_IF_ERROR(check(at.Part(place.bytes - tail, tail), piece.hashes.back(), [&] {
        return fmt::format("layer {}, expert {}, the tail", place.layer, place.expert);
      }));
    }
    kept->pieces.push_back(std::move(piece));
  }
  for (size_t t = 0; kept->dense && t < noted->dense.size(); ++t) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    const loader::DenseTensor& tensor = options_.checkpoint->dense()[t];
    TANGRAM_RETURN_IF_ERROR(check(kept->memories.banks->Dense(tensor.offset, tensor.info.bytes),
                                  noted->dense[t],
                                  [&] { return fmt::format("dense tensor {}", tensor.name); }));
  }
  if (kept->dense) kept->dense_hashes = std::move(noted->dense);
  return OkStatus();
}

Result<std::unique_ptr<RankMemory::Adoption>> RankStore::Examine(const v1::Resume& resume,
                                                                 int32_t rank,
                                                                 std::vector<UniqueFd> fds,
                                                                 std::stop_token stop) {
  if (fds.size() != 3) {
    return Status(Code::kInvalid, fmt::format("{} descriptors came, want those of weights, KV and "
                                              "control",
                                              fds.size()));
  }
  if (rank >= 0 && resume.layout().banks() != options_.banks) {
    return Status(Code::kInvalid, fmt::format("the layout has {} banks, this rank {}",
                                              resume.layout().banks(), options_.banks));
  }
  auto kept = std::make_unique<Kept>();
  kept->member = resume.member();
  auto devices = options_.platform->Adopt({fds[0].get(), fds[1].get(), fds[2].get()}, Bytes());
  if (!devices.ok()) return devices.status();
  Memories& memories = kept->memories;
  memories.devices = std::move(devices).value();
  TANGRAM_RETURN_IF_ERROR(MapMemories(&memories));

  std::vector<layout::PlacedPiece> places;
  if (rank >= 0) {
    places = layout::PiecesOf(resume.layout(), geometry(), static_cast<uint32_t>(rank));
    kept->dense = layout::HoldsDense(resume.layout(), static_cast<uint32_t>(rank));
  }
  const Mapped mapped(*memories.banks, resume.mappings());
  TANGRAM_RETURN_IF_ERROR(memories.banks->Adopt(
      places, kept->dense,
      [&](uint64_t address, uint64_t bytes) { return mapped.Find(address, bytes); }));
  TANGRAM_RETURN_IF_ERROR(Verify(kept.get(), places, stop));
  return std::unique_ptr<Adoption>(std::move(kept));
}

Status RankStore::Adopt(Adoption* adoption) {
  auto* kept = static_cast<Kept*>(adoption);
  const std::scoped_lock lock(mu_);
  if (attempt_ || !current_.empty()) {
    return {Code::kWrongPhase, "this rank holds pieces of its own already"};
  }
  std::swap(memories_, kept->memories);
  member_ = kept->member;
  current_ = Pieces(std::move(kept->pieces));
  dense_backed_ = kept->dense;
  dense_here_.fill(kept->dense);
  if (kept->dense) dense_hashes_ = std::move(kept->dense_hashes);
  ++held_version_;
  return OkStatus();
}

}  // namespace tangram::store
