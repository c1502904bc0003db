#include "agent/store/rank_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "agent/base/fault.h"
#include "agent/mover/tcp_transport.h"

namespace tangram::store {

using layout::PlacedPiece;

Result<std::unique_ptr<RankStore>> RankStore::Create(Options options) {
  if (!options.transports) {  // no other agents
    std::vector<std::unique_ptr<mover::Transport>> all;
    all.push_back(std::make_unique<mover::TcpTransport>(net::Credentials::Insecure()));
    options.transports = std::make_shared<mover::Transports>(std::move(all));
  }
  if (!options.reads) options.reads = std::make_shared<loader::SharedReads>(options.checkpoint);
  std::unique_ptr<RankStore> store(new RankStore(std::move(options)));
  if (Status status = store->Open(); !status.ok()) return status;
  return store;
}

Status RankStore::Open() {
  member_ = options_.member;
  auto devices = options_.platform->Make(options_.member, Bytes());
  if (!devices.ok()) return devices.status();
  memories_.devices = std::move(devices).value();
  TANGRAM_RETURN_IF_ERROR(MapMemories(&memories_));
  if (!options_.hashes_file.empty()) {
    auto hashes = HashFile::Open(options_.hashes_file, options_.revision, geometry(),
                                 options_.checkpoint->dense().size());
    if (!hashes.ok()) return hashes.status();
    hashes_ = std::move(hashes).value();
  }
  dense_hashes_.assign(options_.checkpoint->dense().size(), 0);
  return OkStatus();
}

Status RankStore::MapMemories(Memories* memories) const {
  device::Device& weights = *memories->devices.weights;
  if (geometry().page_bytes() % weights.granularity() != 0) {
    return {Code::kInvalid, fmt::format("page size mismatch: the device maps pages of {} bytes, "
                                        "and page_bytes {} of the geometry is not a multiple of it",
                                        weights.granularity(), geometry().page_bytes())};
  }
  const auto whole = [](device::Device& device, uint64_t bytes, Region* out) {
    auto mapped = device::MapWhole(device);
    if (!mapped.ok()) return mapped.status();
    out->memory = {&device, mapped->first->address(), bytes};
    out->mapping = std::move(mapped->second);
    auto exported = device.ExportOf(out->mapping.block());
    if (!exported.ok()) return exported.status();
    out->exported = std::move(exported).value();
    return OkStatus();
  };
  TANGRAM_RETURN_IF_ERROR(whole(*memories->devices.kv, options_.kv_bytes, &memories->kv));
  TANGRAM_RETURN_IF_ERROR(
      whole(*memories->devices.control, options_.control_bytes, &memories->control));
  auto banks = memory::Banks::Make(&weights, geometry(), options_.banks);
  if (!banks.ok()) return banks.status();
  memories->banks = std::move(banks).value();
  return OkStatus();
}

EngineRegions RankStore::Regions() {
  const std::scoped_lock lock(mu_);
  EngineRegions out;
  out.kv = memories_.kv.exported;
  out.control = memories_.control.exported;
  out.dense_bytes = geometry().proto().dense_bytes();
  out.platform = options_.platform->name();
  out.hugetlb = options_.platform->hugetlb();
  out.kv_bytes = options_.kv_bytes;
  out.control_bytes = options_.control_bytes;
  out.banks = options_.banks;
  out.control_page = device::View(memories_.control.memory).data();
  for (const loader::DenseTensor& tensor : options_.checkpoint->dense()) {
    v1::DenseTensor& t = out.dense_tensors.emplace_back();
    t.set_name(tensor.name);
    t.set_dtype(tensor.info.dtype);
    for (const uint64_t size : tensor.info.shape) t.add_shape(size);
    t.set_offset(tensor.offset);
    t.set_length(tensor.info.bytes);
  }
  return out;
}

MemoryFigures RankStore::Memory() {
  const std::scoped_lock lock(mu_);
  const device::Device& pool = *memories_.devices.weights;
  return {pool.total_bytes(), pool.free_bytes(), memories_.banks->mapped_bytes(),
          options_.platform->info()};
}

uint64_t RankStore::FreshVersion() {
  std::random_device random;
  return uint64_t{random()} << 32 | 1;
}

v1::Inventory RankStore::Held() {
  const std::scoped_lock lock(mu_);
  return HeldLocked();
}

v1::Inventory RankStore::HeldLocked() const {
  v1::Inventory out;
  for (const Pieces* pieces : {&current_, &old_}) {
    for (const Piece& piece : *pieces) {
      out.add_layer(piece.place.layer);
      out.add_bank(piece.place.bank);
      out.add_slot(piece.place.slot);
      out.add_expert(piece.place.expert);
      out.add_granule_start(piece.place.run.start);
      out.add_granule_count(piece.place.run.count);
    }
  }
  out.set_revision(options_.revision);
  out.set_dense(
      std::all_of(dense_here_.begin(), dense_here_.end(), [](bool here) { return here; }));
  return out;
}

device::Memory RankStore::BytesOf(const PlacedPiece& place, uint32_t granule,
                                  uint32_t count) const {
  return GranulesIn(memories_.banks->At(place.bank, place.offset, place.bytes), place.run, granule,
                    count);
}

device::Memory RankStore::GranulesIn(const device::Memory& slab, layout::Run run, uint32_t granule,
                                     uint32_t count) const {
  device::Memory all = slab;
  all.shape = shapes_.Of(run.count);
  const uint64_t unit = geometry().granule_bytes();
  return all.Part((granule - run.start) * unit, count * unit);
}

device::Memory RankStore::TailOf(const PlacedPiece& place) const {
  const uint64_t tail = geometry().tail_bytes();
  return memories_.banks->At(place.bank, place.offset + place.bytes - tail, tail);
}

device::Memory RankStore::DenseBytes(size_t tensor) const {
  const loader::DenseTensor& t = options_.checkpoint->dense()[tensor];
  return memories_.banks->Dense(t.offset, t.info.bytes);
}

Status RankStore::Prepare(uint64_t attempt, const v1::Layout& target, int32_t rank,
                          const v1::RankPart& part) {
  std::vector<device::Memory> fresh;
  TANGRAM_RETURN_IF_ERROR(BackAttempt(attempt, target, rank, part, &fresh));
  // Not under the lock: with small pages this takes as long as a copy. A concurrent abort frees the
  // pages.
  for (const device::Memory& memory : fresh) memory.device->Enter(memory);
  return OkStatus();
}

Status RankStore::BackAttempt(uint64_t attempt, const v1::Layout& target, int32_t rank,
                              const v1::RankPart& part, std::vector<device::Memory>* fresh) {
  const std::scoped_lock lock(mu_);
  if (attempt_) return {Code::kWrongPhase, fmt::format("attempt {} has not ended", attempt_->id)};
  const bool dense =
      std::all_of(dense_here_.begin(), dense_here_.end(), [](bool here) { return here; });
  auto proof = layout::ProvePart(geometry(), target, rank, current_.Places(), dense, part);
  if (!proof.ok()) return proof.status();
  const uint64_t peak = proof->peak_pages * geometry().page_bytes();
  const uint64_t pool = memories_.devices.weights->total_bytes();
  if (peak > pool) {
    return {
        Code::kNoMemory,
        fmt::format("the transition needs {} bytes of memory for weights at its peak, the rank has "
                    "{}; add {} bytes (memory_bytes), or use more ranks or fewer spare banks",
                    peak, pool, peak - pool)};
  }
  Attempt next;
  next.id = attempt;
  next.rank = rank;
  TANGRAM_RETURN_IF_ERROR(memories_.banks->Back(proof->incoming));
  if (proof->brings_dense) {
    if (Status status = memories_.banks->BackDense(); !status.ok()) {
      memories_.banks->Release(proof->incoming);
      return status;
    }
    dense_backed_ = true;
    next.dense_source.assign(part.dense().source_by_part().begin(),
                             part.dense().source_by_part().end());
  }
  for (const PlacedPiece& place : proof->incoming) {
    fresh->push_back(memories_.banks->At(place.bank, place.offset, place.bytes));
  }
  for (size_t t = 0; proof->brings_dense && t < dense_hashes_.size(); ++t) {
    fresh->push_back(DenseBytes(t));
  }
  std::vector<Piece> incoming;
  for (const PlacedPiece& place : proof->incoming) {
    incoming.emplace_back(place, geometry().tail_bytes() > 0);
  }
  next.incoming = Pieces(std::move(incoming));
  next.proof = std::move(proof).value();
  attempt_ = std::move(next);
  return OkStatus();
}

void RankStore::EndAttemptLocked() {
  // A sibling may be copying from these pages, a connection may be sending them. This waits for the
  // current step of either (which waits for nothing itself); no step follows.
  options_.grants->Revoke(this);
  lease_->End();
  lease_ = std::make_shared<mover::Lease>();
  if (attempt_) over_ = std::max(over_, attempt_->id);
  attempt_.reset();
}

void RankStore::ReleaseLocked(const std::vector<PlacedPiece>& places, bool dense) {
  memories_.banks->Release(places);
  if (dense && dense_backed_) {
    memories_.banks->ReleaseDense();
    dense_backed_ = false;
    dense_here_.fill(false);
    ++held_version_;
  }
}

Status RankStore::CheckVerifiedLocked() const {
  for (const Piece& piece : attempt_->incoming) {
    if (const int64_t unit = piece.Missing(); unit >= 0) {
      const bool tail = unit == int64_t{piece.place.run.start} + piece.place.run.count;
      return {Code::kWrongPhase, fmt::format("attempt {}: layer {}, expert {}, {} is not verified",
                                             attempt_->id, piece.place.layer, piece.place.expert,
                                             tail ? "tail" : fmt::format("granule {}", unit))};
    }
  }
  const auto part = std::find(dense_here_.begin(), dense_here_.end(), false);
  if (!attempt_->dense_source.empty() && part != dense_here_.end()) {
    return {Code::kWrongPhase, fmt::format("attempt {}: dense part {} is not verified",
                                           attempt_->id, part - dense_here_.begin())};
  }
  return OkStatus();
}

Status RankStore::Commit() {
  const std::scoped_lock lock(mu_);
  if (!attempt_) return {Code::kWrongPhase, "no attempt to commit"};
  if (attempt_->committed) return OkStatus();  // repeated: its gate did not flip
  TANGRAM_RETURN_IF_ERROR(CheckVerifiedLocked());
  old_ = current_.Split(attempt_->proof.stays);
  current_.Add(std::exchange(attempt_->incoming, {}));
  attempt_->committed = true;
  ++held_version_;
  return OkStatus();
}

void RankStore::UndoCommitLocked() {
  std::set<std::pair<uint32_t, uint64_t>> brought;  // no two pieces have the same place
  for (const PlacedPiece& place : attempt_->proof.incoming) {
    brought.emplace(place.bank, place.offset);
  }
  std::vector<bool> stays;
  for (const Piece& piece : current_) {
    stays.push_back(!brought.contains({piece.place.bank, piece.place.offset}));
  }
  attempt_->incoming = current_.Split(stays);
  current_.Add(std::exchange(old_, {}));
  attempt_->committed = false;
  ++held_version_;
}

void RankStore::Abort() {
  {
    const std::scoped_lock lock(mu_);
    if (!attempt_) return;
    if (attempt_->committed) UndoCommitLocked();
    const std::vector<PlacedPiece> incoming = attempt_->incoming.Places();
    const bool dense = !attempt_->dense_source.empty();
    EndAttemptLocked();
    ReleaseLocked(incoming, dense);
  }
  CloseLinks();
}

Status RankStore::Retire() {
  {
    const std::scoped_lock lock(mu_);
    if (!attempt_ || !attempt_->committed) {
      return {Code::kWrongPhase, "no committed attempt to retire"};
    }
    const bool leaves = attempt_->rank < 0;
    EndAttemptLocked();
    ReleaseLocked(old_.Places(), leaves);
    old_ = {};
    ++held_version_;
  }
  CloseLinks();
  return OkStatus();
}

void RankStore::KeepLocked() {
  if (!attempt_) return;
  current_.Add(std::exchange(old_, {}));
  std::vector<bool> whole;
  for (const Piece& piece : attempt_->incoming) whole.push_back(piece.Missing() < 0);
  const std::vector<PlacedPiece> unfinished = attempt_->incoming.Split(whole).Places();
  current_.Add(std::move(attempt_->incoming));
  ++held_version_;
  const bool half_dense =
      !attempt_->committed && !attempt_->dense_source.empty() &&
      std::find(dense_here_.begin(), dense_here_.end(), false) != dense_here_.end();
  // Needed even if all pieces are retained: KV pages will belong to other requests, and the next
  // attempt grants pieces again.
  EndAttemptLocked();
  ReleaseLocked(unfinished, half_dense);
}

void RankStore::Keep() {
  {
    const std::scoped_lock lock(mu_);
    KeepLocked();
  }
  CloseLinks();
}

void RankStore::Reset(const std::string& member) {
  {
    const std::scoped_lock lock(mu_);
    KeepLocked();
    EndAttemptLocked();  // ends grants outside of attempts
    ReleaseLocked(current_.Places(), true);
    current_ = {};
    ++held_version_;
    member_ = member;
  }
  CloseLinks();
}

std::string RankStore::member() {
  const std::scoped_lock lock(mu_);
  return member_;
}

EngineMappings RankStore::ToProto(const std::vector<memory::BackedRange>& ranges) const {
  EngineMappings all;
  std::vector<v1::Mapping>& out = all.mappings;
  std::map<SharedFd, uint32_t> known;  // index in all.descriptors
  uint64_t end = 0;                    // of the last mapping, in its bank
  for (const memory::BackedRange& range : ranges) {
    // The engine maps between two steps, so consecutive ranges are merged: in the bank, and if the
    // pool allows it also in the descriptor.
    if (out.empty() || out.back().dense() != range.dense || out.back().bank() != range.bank ||
        end != range.offset) {
      v1::Mapping& mapping = out.emplace_back();
      mapping.set_dense(range.dense);
      mapping.set_bank(range.bank);
      mapping.set_offset(range.offset);
      end = range.offset;
    }
    v1::Mapping& mapping = out.back();
    for (const device::Extent& extent : range.behind.extents) {
      end += extent.length;
      const SharedFd& of = range.behind.descriptors[extent.descriptor];
      const auto [index, fresh] =
          known.try_emplace(of, static_cast<uint32_t>(all.descriptors.size()));
      if (fresh) all.descriptors.push_back(of);
      v1::Extent* last = mapping.extents_size() == 0
                             ? nullptr
                             : mapping.mutable_extents(mapping.extents_size() - 1);
      if (last != nullptr && last->fd_index() == index->second &&
          last->offset() + last->length() == extent.offset) {
        last->set_length(last->length() + extent.length);
        continue;
      }
      v1::Extent* e = mapping.add_extents();
      e->set_fd_index(index->second);
      e->set_offset(extent.offset);
      e->set_length(extent.length);
    }
  }
  return all;
}

Result<EngineMappings> RankStore::CurrentMappings() {
  const std::scoped_lock lock(mu_);
  const auto ranges = memories_.banks->Ranges(current_.Places(), dense_backed_);
  if (!ranges.ok()) return ranges.status();
  return ToProto(*ranges);
}

Result<EngineMappings> RankStore::NewMappings() {
  const std::scoped_lock lock(mu_);
  if (!attempt_) return EngineMappings();
  // Pages shared with a neighbour are mapped already.
  const auto ranges =
      memories_.banks->RangesOnlyOf(attempt_->incoming.Places(), !attempt_->dense_source.empty());
  if (!ranges.ok()) return ranges.status();
  return ToProto(*ranges);
}

std::vector<v1::Mapping> RankStore::DroppedMappings() {
  const std::scoped_lock lock(mu_);
  if (!attempt_ || !attempt_->committed) return {};
  std::vector<v1::Mapping> out;
  const auto places =
      memories_.banks->PlacesOnlyOf(old_.Places(), attempt_->rank < 0 && dense_backed_);
  for (const memory::BankRange& place : places) {
    if (v1::Mapping* last = out.empty() ? nullptr : &out.back();
        last != nullptr && last->dense() == place.dense && last->bank() == place.bank &&
        last->offset() + last->extents(0).length() == place.offset) {
      last->mutable_extents(0)->set_length(last->extents(0).length() + place.bytes);
      continue;
    }
    v1::Mapping& mapping = out.emplace_back();
    mapping.set_dense(place.dense);
    mapping.set_bank(place.bank);
    mapping.set_offset(place.offset);
    mapping.add_extents()->set_length(place.bytes);
  }
  return out;
}

Status RankStore::Audit() {
  const std::scoped_lock lock(mu_);
  std::vector<PlacedPiece> all = current_.Places();
  const auto add = [&](const Pieces& pieces) {
    for (const Piece& piece : pieces) all.push_back(piece.place);
  };
  add(old_);
  if (attempt_) add(attempt_->incoming);
  std::pair now(held_version_.load(), HeldLocked().SerializeAsString());
  if (audited_ && audited_->first == now.first && audited_->second != now.second) {
    return {Code::kInvalid, "the inventory has changed, but its version has not"};
  }
  audited_ = std::move(now);
  return memories_.banks->Audit(all, dense_backed_);
}

}  // namespace tangram::store
