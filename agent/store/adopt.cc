// RankStore::Adopt: the memory of a rank outlives its agent in the hands of its engine.
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

Status RankStore::Adopt(const v1::Resume& resume, int32_t rank, std::vector<UniqueFd> fds) {
  if (fds.size() != 3) {
    return {Code::kInvalid, fmt::format("{} descriptors came, want those of weights, KV and "
                                        "control",
                                        fds.size())};
  }
  Arenas arenas;
  const auto take = [&](size_t i, uint64_t bytes, bool read_only,
                        std::unique_ptr<device::HostDevice>* out) {
    auto made = device::HostDevice::Adopt(fds[i].get(), bytes, read_only);
    if (!made.ok()) return made.status();
    *out = std::move(made).value();
    return OkStatus();
  };
  TANGRAM_RETURN_IF_ERROR(take(0, options_.pool_bytes, true, &arenas.weights));
  TANGRAM_RETURN_IF_ERROR(take(1, options_.kv_bytes, false, &arenas.kv));
  TANGRAM_RETURN_IF_ERROR(take(2, options_.control_bytes, false, &arenas.control));
  TANGRAM_RETURN_IF_ERROR(MapArenas(&arenas));

  std::vector<layout::PlacedPiece> places;
  bool dense = false;
  if (rank >= 0) {
    places = layout::PiecesOf(resume.layout(), geometry(), static_cast<uint32_t>(rank));
    dense = layout::HoldsDense(resume.layout(), static_cast<uint32_t>(rank));
  }
  const Mapped mapped(*arenas.banks, resume.mappings());
  TANGRAM_RETURN_IF_ERROR(arenas.banks->Adopt(places, dense, [&](uint64_t address, uint64_t bytes) {
    return mapped.Find(address, bytes);
  }));

  const std::scoped_lock lock(mu_);
  if (attempt_ || !current_.empty()) {
    return {Code::kWrongPhase, "this rank holds pieces of its own already"};
  }
  Use(std::move(arenas));
  member_ = resume.member();
  const uint64_t unit = geometry().granule_bytes();
  for (const layout::PlacedPiece& place : places) {
    Piece piece{place, {}, std::vector<bool>(place.run.count, true)};
    for (uint32_t i = 0; i < place.run.count; ++i) {
      piece.hashes.push_back(mover::HashOf(BytesOf(place, place.run.start + i, 1).first(unit)));
    }
    current_.push_back(std::move(piece));
  }
  dense_backed_ = dense;
  dense_here_.fill(dense);
  for (size_t t = 0; dense && t < dense_hashes_.size(); ++t) {
    dense_hashes_[t] = mover::HashOf(DenseBytes(t));
  }
  return OkStatus();
}

}  // namespace tangram::store
