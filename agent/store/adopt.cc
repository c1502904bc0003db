// RankStore::Examine and Adopt: an engine keeps a rank's memory when the agent dies.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "agent/store/rank_store.h"

namespace tangram::store {
namespace {

using Extents = google::protobuf::RepeatedPtrField<v1::Extent>;

// The descriptors that an engine kept, by purpose, in the order in which the importing device gets
// them.
class Sorted {
 public:
  // kInvalid: an extent names a descriptor that was not passed, or that has another purpose.
  static Result<Sorted> Of(const v1::Resume& resume, const KeptFds& kept) {
    Sorted out;
    for (const v1::Mapping& mapping : resume.mappings()) {
      TANGRAM_RETURN_IF_ERROR(out.Add(mapping.extents(), kept, &out.descriptors_.weights));
    }
    TANGRAM_RETURN_IF_ERROR(out.Add(resume.kv(), kept, &out.descriptors_.kv));
    TANGRAM_RETURN_IF_ERROR(out.Add(resume.control(), kept, &out.descriptors_.control));
    return out;
  }

  const device::RankDescriptors& descriptors() const { return descriptors_; }
  device::Extent Place(const v1::Extent& extent) const {
    return {extent.offset(), extent.length(), index_.at(extent.fd_index())};
  }
  bool AreAll(const Extents& extents, const device::Export& all) const {
    const auto same = [this](const v1::Extent& told, const device::Extent& is) {
      return Place(told) == is;
    };
    return std::equal(extents.begin(), extents.end(), all.extents.begin(), all.extents.end(), same);
  }
  // The importing device's exports in their place.
  void Shown(const Extents& extents, const device::Device& device, ShownFds* out) const {
    for (const v1::Extent& extent : extents) {
      (*out)[extent.fd_index()] = device.Adopted(index_.at(extent.fd_index()));
    }
  }

 private:
  Status Add(const Extents& extents, const KeptFds& kept, std::vector<int>* to) {
    for (const v1::Extent& extent : extents) {
      const auto fd = kept.find(extent.fd_index());
      if (fd == kept.end()) {
        return {Code::kInvalid,
                fmt::format("the engine refers to descriptor {}, which it did not pass",
                            extent.fd_index())};
      }
      const auto [index, fresh] =
          index_.try_emplace(extent.fd_index(), static_cast<uint32_t>(to->size()));
      if (fresh) to->push_back(fd->second.get());
      if (index->second >= to->size() || (*to)[index->second] != fd->second.get()) {
        return {
            Code::kInvalid,
            fmt::format("descriptor {} belongs to more than one of weights, KV and control page",
                        extent.fd_index())};
      }
    }
    return OkStatus();
  }

  device::RankDescriptors descriptors_;
  std::map<uint32_t, uint32_t> index_;  // by number: index within its purpose
};

// The engine's mappings, by address in the range of the banks.
class Mapped {
 public:
  Mapped(const memory::Banks& banks, const v1::Resume& resume, const Sorted& sorted) {
    for (const v1::Mapping& mapping : resume.mappings()) {
      uint64_t address = banks.AddressOf(mapping.dense(), mapping.bank(), mapping.offset());
      for (const v1::Extent& extent : mapping.extents()) {
        runs_[address] = sorted.Place(extent);
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
        return Status{
            Code::kInvalid,
            fmt::format("the engine has no memory mapped at offset {} of the banks", address)};
      }
      const uint64_t take = std::min(bytes, it->second.length - skip);
      out.push_back({it->second.offset + skip, take, it->second.descriptor});
      address += take;
      bytes -= take;
    }
    return out;
  }

 private:
  std::map<uint64_t, device::Extent> runs_;
};

// Memory to compare with stored hashes. It is checked in large batches, because each read of a
// device costs a wait.
class Unchanged {
 public:
  Unchanged(device::Device* device, const std::stop_token& stop) : device_(device), stop_(stop) {}

  // `name` is for errors, also later ones. kInvalid: no hash is stored; kCorrupt: an earlier range
  // has another hash; kUnavailable: stopped.
  Status Check(const device::Memory& memory, uint64_t hash, std::function<std::string()> name) {
    if (hash == 0) {
      return {Code::kInvalid, fmt::format("{}: no hash was recorded at the load", name())};
    }
    all_.push_back({memory, hash, 0, std::move(name)});
    bytes_ += memory.bytes;
    return bytes_ < kTogether ? OkStatus() : Finish();
  }
  Status Finish() {
    if (stop_.stop_requested()) return {Code::kUnavailable, "stopped"};
    std::vector<device::HashOp> ops;
    for (One& one : all_) ops.push_back({one.memory, &one.is});
    if (!ops.empty()) TANGRAM_RETURN_IF_ERROR(device_->Hash(ops).Wait());
    for (const One& one : all_) {
      if (one.is != one.hash) {
        return {Code::kCorrupt, fmt::format("{} has changed since it was loaded", one.name())};
      }
    }
    all_.clear();
    bytes_ = 0;
    return OkStatus();
  }

 private:
  static constexpr uint64_t kTogether = 64 << 20;
  struct One {
    device::Memory memory;
    uint64_t hash = 0, is = 0;
    std::function<std::string()> name;
  };
  device::Device* const device_;
  const std::stop_token& stop_;
  std::vector<One> all_;
  uint64_t bytes_ = 0;
};

}  // namespace

struct RankStore::Kept final : RankMemory::Adoption {
  Memories memories;
  std::string member;
  std::vector<Piece> pieces;
  std::vector<uint64_t> dense_hashes;
  bool dense = false;
  ShownFds shown;  // by the kept descriptor's number

  ShownFds descriptors() override { return shown; }
  void* control() override { return device::View(memories.control.memory).data(); }
};

// No process writes meanwhile: the agent that did is dead, and the engine only reads.
Status RankStore::Verify(Kept* kept, const std::vector<layout::PlacedPiece>& places,
                         const std::stop_token& stop) const {
  if (places.empty() && !kept->dense) return OkStatus();
  if (!hashes_) {
    return {Code::kInvalid,
            "retained weights cannot be verified without a hashes_file; set hashes_file or "
            "in_world_file"};
  }
  auto noted = hashes_->Read();
  if (!noted.ok()) return noted.status();
  Unchanged unchanged(kept->memories.devices.weights.get(), stop);
  for (const layout::PlacedPiece& place : places) {
    const uint32_t layer = place.layer, expert = place.expert;
    Piece piece(place, geometry().tail_bytes() > 0);
    const device::Memory at = kept->memories.banks->At(place.bank, place.offset, place.bytes);
    for (uint32_t i = 0; i < place.run.count; ++i) {
      const uint32_t granule = place.run.start + i;
      piece.hashes[i] = noted->Granule(place.layer, place.expert, granule);
      TANGRAM_RETURN_IF_ERROR(unchanged.Check(
          GranulesIn(at, place.run, granule, 1), piece.hashes[i],
          [=] { return fmt::format("layer {}, expert {}, granule {}", layer, expert, granule); }));
    }
    if (const uint64_t tail = geometry().tail_bytes(); tail > 0) {
      piece.hashes.back() = noted->Tail(place.layer, place.expert);
      TANGRAM_RETURN_IF_ERROR(
          unchanged.Check(at.Part(place.bytes - tail, tail), piece.hashes.back(),
                          [=] { return fmt::format("layer {}, expert {}, tail", layer, expert); }));
    }
    kept->pieces.push_back(std::move(piece));
  }
  for (size_t t = 0; kept->dense && t < noted->dense.size(); ++t) {
    const loader::DenseTensor& tensor = options_.checkpoint->dense()[t];
    TANGRAM_RETURN_IF_ERROR(unchanged.Check(
        kept->memories.banks->Dense(tensor.offset, tensor.info.bytes), noted->dense[t],
        [&tensor] { return fmt::format("dense tensor {}", tensor.name); }));
  }
  TANGRAM_RETURN_IF_ERROR(unchanged.Finish());
  if (kept->dense) kept->dense_hashes = std::move(noted->dense);
  return OkStatus();
}

Result<std::unique_ptr<RankMemory::Adoption>> RankStore::Examine(const v1::Resume& resume,
                                                                 int32_t rank, KeptFds fds,
                                                                 std::stop_token stop) {
  const auto sorted = Sorted::Of(resume, fds);
  if (!sorted.ok()) return sorted.status();
  if (rank >= 0 && resume.layout().banks() != options_.banks) {
    return Status(Code::kInvalid, fmt::format("the layout has {} banks, this rank has {}",
                                              resume.layout().banks(), options_.banks));
  }
  auto kept = std::make_unique<Kept>();
  kept->member = resume.member();
  auto devices = options_.platform->Adopt(resume.member(), sorted->descriptors(), Bytes());
  if (!devices.ok()) return devices.status();
  Memories& memories = kept->memories;
  memories.devices = std::move(devices).value();
  TANGRAM_RETURN_IF_ERROR(MapMemories(&memories));
  for (const auto& [told, region] :
       {std::pair(&resume.kv(), &memories.kv), std::pair(&resume.control(), &memories.control)}) {
    auto all = region->memory.device->ExportOf(region->mapping.block());
    if (!all.ok()) return all.status();
    if (!sorted->AreAll(*told, *all)) {
      return Status(Code::kInvalid,
                    "the engine did not retain all of the KV memory and the control page");
    }
    sorted->Shown(*told, *region->memory.device, &kept->shown);
  }
  for (const v1::Mapping& mapping : resume.mappings()) {
    sorted->Shown(mapping.extents(), *memories.devices.weights, &kept->shown);
  }

  std::vector<layout::PlacedPiece> places;
  if (rank >= 0) {
    places = layout::PiecesOf(resume.layout(), geometry(), static_cast<uint32_t>(rank));
    kept->dense = layout::HoldsDense(resume.layout(), static_cast<uint32_t>(rank));
  }
  const Mapped mapped(*memories.banks, resume, *sorted);
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
    return {Code::kWrongPhase, "this rank already holds pieces of its own"};
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
