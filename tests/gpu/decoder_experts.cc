#include "tests/gpu/decoder_experts.h"

#include <algorithm>
#include <utility>

namespace tangram::gpu {
namespace {

// Slots of a rank: its own experts, and its part when another rank dies.
uint64_t SlotsOf(const DecoderShape& shape, uint64_t ranks) {
  const uint64_t own = shape.experts / ranks, others = std::max<uint64_t>(ranks - 1, 1);
  return own + (own + others - 1) / others;
}

}  // namespace

DecoderExperts::DecoderExperts(const Gpu& gpu, const Kernels& kernels, const DecoderShape& shape,
                               uint64_t ranks, uint64_t seed)
    : gpu_(gpu),
      kernels_(kernels),
      shape_(shape),
      ranks_(ranks),
      seed_(seed),
      pitch_(RoundUp(shape.expert_bytes(), gpu.granularity())),
      slots_(SlotsOf(shape, ranks)),
      at_(shape.layers),
      taken_(ranks, std::vector<uint64_t>(shape.layers)) {
  for (uint64_t r = 0; r < ranks; ++r) {
    whole_.push_back(std::make_unique<Range>(gpu, shape.layers * slots_ * pitch_));
  }
  for (auto& layer : at_) layer.resize(shape.experts);
}

DecoderExperts::~DecoderExperts() {
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t e = 0; e < shape_.experts; ++e) Drop(layer, e);
  }
}

void DecoderExperts::Drop(uint64_t layer, uint64_t expert) {
  Slot& slot = at_[layer][expert];
  if (slot.handle != nullptr) (void)gpu_.driver().MemUnmap(AddressOf(layer, slot), pitch_);
  slot.handle.reset();
}

DecoderExperts::Owners DecoderExperts::InOrder() const {
  Owners out(shape_.layers);
  for (auto& layer : out) {
    for (uint64_t e = 0; e < shape_.experts; ++e) layer.push_back(e * ranks_ / shape_.experts);
  }
  return out;
}

uint64_t DecoderExperts::AddressOf(uint64_t layer, const Slot& slot) const {
  return whole_[slot.rank]->address() + (layer * slots_ + slot.number) * pitch_;
}

uint64_t DecoderExperts::SliceAt(uint64_t rank, uint64_t layer, uint64_t expert) const {
  return sliced_[rank]->address() +
         (layer * shape_.experts + expert) * (shape_.expert_bytes() / ranks_);
}

void DecoderExperts::Fill(uint64_t to, uint64_t layer, uint64_t expert, uint64_t seed) const {
  const uint64_t count = shape_.expert_bytes() / 2;
  const kernels::FillParameters fill{to, count, (layer * shape_.experts + expert) * count, seed,
                                     0.05f};
  kernels_.Launch("fill_bf16", kernels::ItemsLaunch(count, 8 * AllBlocks(gpu_)), fill,
                  gpu_.stream());
}

void DecoderExperts::Put(uint64_t layer, uint64_t expert, uint64_t rank) {
  Slot& slot = at_[layer][expert];
  slot = {rank, taken_[rank][layer]++, std::make_unique<Handle>(gpu_, pitch_)};
  Map(gpu_, AddressOf(layer, slot), *slot.handle);
  Fill(AddressOf(layer, slot), layer, expert, seed_);
  owners_[layer][expert] = rank;
}

void DecoderExperts::LoadWhole(const Owners& owners) {
  owners_ = owners;
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t e = 0; e < shape_.experts; ++e) Put(layer, e, owners[layer][e]);
  }
  gpu_.Wait();
}

void DecoderExperts::LoadSliced() {
  LoadWhole(InOrder());
  StageSliced(gpu_.stream());
  gpu_.Wait();
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t e = 0; e < shape_.experts; ++e) Drop(layer, e);
  }
}

void DecoderExperts::Stage(bool to_sliced, CUstream stream) {
  if (sliced_.empty()) {
    for (uint64_t r = 0; r < ranks_; ++r) {
      sliced_.push_back(std::make_unique<Buffer>(
          gpu_, shape_.layers * shape_.experts * shape_.expert_bytes() / ranks_));
    }
  }
  const ExpertShape shape = shape_.experts_shape();
  const auto sections = shape.sections();
  lists_.clear();
  for (uint64_t r = 0; r < ranks_; ++r) {
    std::vector<kernels::CopyStrip> strips;
    const uint64_t count = shape.granules / ranks_, first = r * count;
    for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
      for (uint64_t e = 0; e < shape_.experts; ++e) {
        const kernels::Slab whole{AddressOf(layer, at_[layer][e]), shape.granules, true};
        const kernels::Slab piece{SliceAt(r, layer, e), count, true};
        if (to_sliced) {
          kernels::AppendStrips(piece, 0, whole, first, count, sections, &strips);
        } else {
          kernels::AppendStrips(whole, first, piece, 0, count, sections, &strips);
        }
      }
    }
    lists_.push_back(std::make_unique<StripList>(gpu_, std::move(strips)));
    lists_.back()->Launch(kernels_, AllBlocks(gpu_) / 4 + 1, stream);
  }
}

void DecoderExperts::StageSliced(CUstream stream) { Stage(true, stream); }
void DecoderExperts::StageWhole(CUstream stream) { Stage(false, stream); }

void DecoderExperts::SpoilWhole() {
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t e = 0; e < shape_.experts; ++e) {
      Fill(AddressOf(layer, at_[layer][e]), layer, e, ~seed_);
    }
  }
  gpu_.Wait();
}

void DecoderExperts::SpoilSliced() {
  for (const auto& buffer : sliced_) {
    const kernels::FillParameters fill{buffer->address(), buffer->bytes() / 2, 0, ~seed_, 1};
    kernels_.Launch("fill_bf16", kernels::ItemsLaunch(fill.rows, 8 * AllBlocks(gpu_)), fill,
                    gpu_.stream());
  }
  gpu_.Wait();
}

void DecoderExperts::Exchange(uint64_t layer, uint64_t a, uint64_t b) {
  Slot &first = at_[layer][a], &second = at_[layer][b];
  for (const Slot* slot : {&first, &second}) Unmap(gpu_, AddressOf(layer, *slot), pitch_);
  std::swap(first.rank, second.rank);
  std::swap(first.number, second.number);
  for (const Slot* slot : {&first, &second}) Map(gpu_, AddressOf(layer, *slot), *slot->handle);
  std::swap(owners_[layer][a], owners_[layer][b]);
}

void DecoderExperts::KillTheLast() {
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t e = 0; e < shape_.experts; ++e) {
      if (owners_[layer][e] == ranks_ - 1) Drop(layer, e);
    }
  }
}

void DecoderExperts::Repair() {
  uint64_t next = 0;
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t e = 0; e < shape_.experts; ++e) {
      if (at_[layer][e].handle == nullptr) Put(layer, e, next++ % (ranks_ - 1));
    }
  }
  gpu_.Wait();
}

std::vector<uint64_t> DecoderExperts::WholePlaces() const {
  std::vector<uint64_t> out(ranks_ * shape_.layers * shape_.experts);
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t e = 0; e < shape_.experts; ++e) {
      const Slot& slot = at_[layer][e];
      if (slot.handle == nullptr) continue;
      out[(slot.rank * shape_.layers + layer) * shape_.experts + e] = AddressOf(layer, slot);
    }
  }
  return out;
}

std::vector<uint64_t> DecoderExperts::SlicedPlaces() const {
  std::vector<uint64_t> out;
  for (uint64_t r = 0; r < ranks_; ++r) {
    for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
      for (uint64_t e = 0; e < shape_.experts; ++e) out.push_back(SliceAt(r, layer, e));
    }
  }
  return out;
}

}  // namespace tangram::gpu
