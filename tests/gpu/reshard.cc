// Experts of Qwen3-235B between whole and sliced: all ranks fetch concurrently with one launch of
// copy_strips each. Ranks are streams and address ranges of this one GPU: this measures its memory,
// and no link.
#include <fmt/format.h>

#include <algorithm>

#include "tests/gpu/acts.h"
#include "tests/gpu/draw.h"
#include "tests/gpu/experts.h"
#include "tests/gpu/staged.h"

namespace tangram::gpu {
namespace {

constexpr int kRounds = 5;

// As many layers as half of the memory holds, at most four, so that both layouts and the staged
// method's buffers fit. On a small GPU a layer has fewer experts.
struct Size {
  ExpertShape shape;
  uint64_t layers = 0;
};
Size SizeFor(const Gpu& gpu, bool small) {
  Size out{{4096, 1536, 24, 128}, 4};
  if (small) return {{64, 96, 24, 16}, 2};
  const uint64_t room = gpu.free_bytes() / 10 * 9;
  const auto needs = [&] { return (2 * out.layers + 2) * out.shape.layer_bytes(); };
  while (needs() > room && out.layers > 1) --out.layers;
  while (needs() > room && out.shape.experts > 8) out.shape.experts /= 2;
  if (needs() > room) {
    throw Lacks(fmt::format("{} bytes of memory are needed, {} are free", needs(), room));
  }
  return out;
}

// Contents of experts: parts of one pool of random bytes, each from a different offset.
class Contents {
 public:
  Contents(const Gpu& gpu, const Size& size)
      : gpu_(gpu), size_(size), pool_(size.shape.expert_bytes() + kStep * count()) {
    Draw(11).Fill(pool_);
    device_ = UploadList(gpu, pool_);
  }
  void Put(uint64_t to, uint64_t layer, uint64_t expert, CUstream stream) const {
    Copy(gpu_, to, device_->address() + At(layer, expert), size_.shape.expert_bytes(), stream);
  }
  std::vector<std::byte> Of(uint64_t layer, uint64_t expert) const {
    const auto begin = pool_.begin() + static_cast<int64_t>(At(layer, expert));
    return {begin, begin + static_cast<int64_t>(size_.shape.expert_bytes())};
  }

 private:
  static constexpr uint64_t kStep = 4096 + 16;
  uint64_t count() const { return size_.layers * size_.shape.experts + 1; }
  uint64_t At(uint64_t layer, uint64_t expert) const {
    return (layer * size_.shape.experts + expert) * kStep;
  }

  const Gpu& gpu_;
  const Size size_;
  std::vector<std::byte> pool_;
  std::unique_ptr<Buffer> device_;
};

class Reshard {
 public:
  Reshard(const Gpu& gpu, const Kernels& kernels, const Size& size, const Contents& contents,
          uint64_t ranks, bool row_major, Recorder* out)
      : gpu_(gpu),
        kernels_(kernels),
        size_(size),
        contents_(contents),
        row_major_(row_major),
        out_(*out),
        whole_(Banks(ranks)),
        sliced_(Banks(ranks)),
        experts_(size.shape, size.layers, ranks, row_major, whole_, sliced_),
        watch_(gpu, ranks) {}

  void Run() {
    FillWhole(0);
    const auto before = HashWhole();
    const double copy = CopySeconds();
    double there_staged = 0;
    if (row_major_) {  // the staged method must be right, too
      there_staged = StagedSeconds(true);
      CheckSlices(before);
      (void)CopySeconds();  // overwrites the slices, so that missing bytes are detected
    }
    const double there = PullSeconds(true);
    CheckSlices(before);
    FillWhole(1);  // other experts, so that missing bytes are detected
    const double back = PullSeconds(false);
    ExpectWhole(before, "after there and back");
    double back_staged = 0;
    if (row_major_) {
      FillWhole(1);
      back_staged = StagedSeconds(false);
      ExpectWhole(before, "after there and back, staged");
    }
    Tell("whole to sliced", there, copy, there_staged);
    Tell("sliced to whole", back, copy, back_staged);
  }

 private:
  uint64_t ranks() const { return experts_.ranks(); }
  Buffers Banks(uint64_t ranks) const {
    Buffers out;
    for (uint64_t r = 0; r < ranks; ++r) {
      out.push_back(
          std::make_unique<Buffer>(gpu_, size_.layers * size_.shape.layer_bytes() / ranks));
    }
    return out;
  }
  uint32_t BlocksOfEach() const {
    return std::max<uint32_t>(1, AllBlocks(gpu_) / static_cast<uint32_t>(ranks()));
  }

  // Fills each place with the expert `shift` places further: 0 is the right one.
  void FillWhole(uint64_t shift) {
    for (uint64_t layer = 0; layer < size_.layers; ++layer) {
      for (uint64_t e = 0; e < size_.shape.experts; ++e) {
        contents_.Put(experts_.Whole(layer, e), layer, (e + shift) % size_.shape.experts,
                      gpu_.stream());
      }
    }
    gpu_.Wait();
  }

  // A hash per granule of each expert if granules are contiguous; in a row-major slab, per as many
  // bytes.
  std::vector<uint64_t> HashWhole() const {
    std::vector<HashList::Bytes> ranges;
    for (uint64_t layer = 0; layer < size_.layers; ++layer) {
      for (uint64_t e = 0; e < size_.shape.experts; ++e) {
        for (uint64_t g = 0; g < size_.shape.granules; ++g) {
          ranges.push_back({experts_.Whole(layer, e) + g * size_.shape.granule_bytes(),
                            size_.shape.granule_bytes()});
        }
      }
    }
    return HashList(gpu_, ranges).Hashes(kernels_);
  }

  void ExpectWhole(const std::vector<uint64_t>& before, const std::string& when) {
    const auto now = HashWhole();
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] == before[i]) continue;
      return out_.Wrong(
          fmt::format("{}: granule {} of {} differs {}", Name(), i, now.size(), when));
    }
    out_.Right(Name() + ": granules equal by hash " + when, now.size());
  }

  // Checks all granules by hash if slices have them in order; else some slices byte for byte.
  void CheckSlices(const std::vector<uint64_t>& before) {
    if (!row_major_) {
      std::vector<HashList::Bytes> ranges;
      const uint64_t per_slice = size_.shape.granules / ranks();
      for (uint64_t layer = 0; layer < size_.layers; ++layer) {
        for (uint64_t e = 0; e < size_.shape.experts; ++e) {
          for (uint64_t g = 0; g < size_.shape.granules; ++g) {
            ranges.push_back({experts_.Slice(g / per_slice, layer, e) +
                                  g % per_slice * size_.shape.granule_bytes(),
                              size_.shape.granule_bytes()});
          }
        }
      }
      if (HashList(gpu_, ranges).Hashes(kernels_) != before) {
        return out_.Wrong(Name() + ": slices differ from the experts that they are of");
      }
      return out_.Right(Name() + ": granules equal by hash when sliced", before.size());
    }
    Draw draw(ranks());
    constexpr uint64_t kSamples = 24;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const uint64_t layer = draw.Below(size_.layers), e = draw.Below(size_.shape.experts),
                     rank = i % ranks();
      if (Download(gpu_, experts_.Slice(rank, layer, e), experts_.slice_bytes()) !=
          SliceOf(size_.shape, contents_.Of(layer, e), rank, ranks(), row_major_)) {
        return out_.Wrong(fmt::format("{}: the slice of rank {} of expert {} of layer {} differs",
                                      Name(), rank, e, layer));
      }
    }
    out_.Right(Name() + ": slices compared byte for byte", kSamples);
  }

  // A plain copy of the same bytes, by all ranks concurrently or one after another: the faster one.
  double CopySeconds() {
    const double at_once = watch_.Seconds(kRounds, [&] {
      for (uint64_t r = 0; r < ranks(); ++r) {
        Copy(gpu_, sliced_[r]->address(), whole_[r]->address(), experts_.rank_bytes(),
             watch_.stream(r));
      }
    });
    const double in_turn = watch_.Seconds(kRounds, [&] {
      for (uint64_t r = 0; r < ranks(); ++r) {
        Copy(gpu_, sliced_[r]->address(), whole_[r]->address(), experts_.rank_bytes(),
             watch_.stream(0));
      }
    });
    return std::min(at_once, in_turn);
  }

  double PullSeconds(bool to_sliced) {
    std::vector<std::unique_ptr<StripList>> lists;
    for (uint64_t r = 0; r < ranks(); ++r) {
      auto strips = to_sliced ? experts_.ToSliced(r) : experts_.ToWhole(r);
      // Each rank starts with its neighbour.
      const size_t start = (r + 1) % ranks() * (strips.size() / ranks());
      lists.push_back(std::make_unique<StripList>(gpu_, std::move(strips), start));
    }
    return watch_.Seconds(kRounds, [&] {
      for (uint64_t r = 0; r < ranks(); ++r) {
        lists[r]->Launch(kernels_, BlocksOfEach(), watch_.stream(r));
      }
    });
  }

  // The staged method: pack, all-to-all, unpack, layer after layer.
  double StagedSeconds(bool to_sliced) {
    const Exchange exchange(gpu_, ranks(), experts_.per_rank() * experts_.slice_bytes());
    std::vector<std::unique_ptr<StripList>> packs, unpacks;  // [layer][rank]
    for (uint64_t layer = 0; layer < size_.layers; ++layer) {
      for (uint64_t r = 0; r < ranks(); ++r) {
        packs.push_back(StagedList(exchange, layer, r, to_sliced, true));
        unpacks.push_back(StagedList(exchange, layer, r, to_sliced, false));
      }
    }
    return watch_.Seconds(kRounds, [&] {
      for (uint64_t layer = 0; layer < size_.layers; ++layer) {
        const auto launch = [&](const auto& lists) {
          return [&](uint64_t rank) {
            lists[layer * ranks() + rank]->Launch(kernels_, BlocksOfEach(), watch_.stream(rank));
          };
        };
        exchange.Put(&watch_, launch(packs), launch(unpacks));
      }
    });
  }

  // A rank's strips to pack for (or unpack from) every peer: a part has the slices of one owner's
  // experts.
  std::unique_ptr<StripList> StagedList(const Exchange& exchange, uint64_t layer, uint64_t rank,
                                        bool to_sliced, bool pack) {
    std::vector<kernels::CopyStrip> strips;
    const uint64_t piece = experts_.slice_bytes();
    for (uint64_t peer = 0; peer < ranks(); ++peer) {
      const uint64_t part = pack ? exchange.SendAt(rank, peer) : exchange.ReceivedAt(rank, peer);
      // The owner of the experts, and the rank of the slices.
      const bool mine = pack == to_sliced;
      const uint64_t owner = mine ? rank : peer, slice = mine ? peer : rank;
      for (uint64_t i = 0; i < experts_.per_rank(); ++i) {
        const uint64_t e = owner * experts_.per_rank() + i, at = part + i * piece;
        if (mine) {  // between whole experts and parts
          experts_.AppendSlice(slice, experts_.Whole(layer, e), at, pack, &strips);
        } else {  // between parts and slices, which have the same format
          const uint64_t lies = experts_.Slice(rank, layer, e);
          strips.push_back({pack ? at : lies, piece, pack ? lies : at, piece, piece, 1, 0});
        }
      }
    }
    return std::make_unique<StripList>(gpu_, std::move(strips));
  }

  std::string Name() const {
    return fmt::format("{} ranks, {}", ranks(), row_major_ ? "row-major" : "granule-major");
  }
  void Tell(const std::string& direction, double seconds, double copy, double staged) {
    const double bytes = static_cast<double>(size_.layers * size_.shape.layer_bytes());
    const std::string name = fmt::format("{}, {}", direction, Name());
    out_.Add({.name = name,
              .value = 1e-9 * bytes / seconds,
              .unit = "GB/s",
              .ceiling = 1e-9 * bytes / copy,
              .ceiling_is = "GB/s of a copy of the same bytes",
              .goal = 0.85,
              .note = watch_.Note()});
    if (staged == 0) return;
    out_.Add({.name = name + ", over pack + all-to-all + unpack",
              .value = staged / seconds,
              .unit = "times as fast",
              .goal = 2,
              .note = fmt::format("staged: {:.0f} GB/s", 1e-9 * bytes / staged)});
  }

  const Gpu& gpu_;
  const Kernels& kernels_;
  const Size& size_;
  const Contents& contents_;
  const bool row_major_;
  Recorder& out_;
  const Buffers whole_, sliced_;
  const ExpertRanks experts_;
  Stopwatch watch_;
};

}  // namespace

void RunReshard(const Task& task) {
  const Gpu gpu(task.driver);
  const Kernels kernels(gpu);
  const Size size = SizeFor(gpu, task.small);
  task.out->Fact("shape",
                 fmt::format("{} layers of {} experts, hidden {}, inner {}, BF16: {:.2f} GB",
                             size.layers, size.shape.experts, size.shape.hidden, size.shape.inner,
                             1e-9 * static_cast<double>(size.layers * size.shape.layer_bytes())));
  task.out->Fact("what it measures",
                 "the memory of one GPU: ranks are streams and address ranges; "
                 "no byte crosses a link");
  const Contents contents(gpu, size);
  for (const uint64_t ranks : {8, 4, 2}) {
    for (const bool row_major : {true, false}) {
      Reshard(gpu, kernels, size, contents, ranks, row_major, task.out).Run();
    }
  }
}

}  // namespace tangram::gpu
