// KV of 256 requests moves from ranks with all heads of their requests to ranks with one head of
// all requests: each rank fetches with one launch of kv_by_head. As in reshard.cc, this measures
// one GPU's memory.
#include <fmt/format.h>

#include <algorithm>

#include "tests/gpu/acts.h"
#include "tests/gpu/draw.h"
#include "tests/gpu/kv_pages.h"
#include "tests/gpu/staged.h"

namespace tangram::gpu {
namespace {

constexpr int kRounds = 5;
constexpr uint64_t kRanks = 8, kLayers = 94, kHeads = 4;

// As many of the model's layers as fit in memory: the regions before and after (each head goes to
// two ranks), and send and receive buffers.
KvRanks KvFor(const Gpu& gpu, bool small) {
  if (small) return KvRanks({2, kHeads}, kRanks, 16, 64, 5);
  const uint64_t room = gpu.free_bytes() / 10 * 8;
  for (uint64_t layers = kLayers; layers > 0; --layers) {
    KvRanks out({layers, kHeads}, kRanks, 256, 4096, 5);
    const uint64_t buffers =
        kRanks * kRanks * out.most_blocks() * layers * out.shape().block_bytes(1);
    if (kRanks * (out.whole_bytes() + out.split_bytes()) + 2 * buffers <= room) return out;
  }
  throw Lacks(fmt::format("{} bytes of memory are not enough for a layer", room));
}

class KvMoveBench {
 public:
  KvMoveBench(const Gpu& gpu, const Kernels& kernels, const KvRanks& kv, Recorder* out)
      : gpu_(gpu),
        kernels_(kernels),
        kv_(kv),
        out_(*out),
        whole_(Regions(kv.whole_bytes())),
        split_(Regions(kv.split_bytes())),
        watch_(gpu, kRanks) {}

  void Run() {
    Fill();
    const auto before = HashWhole();
    const double staged = StagedSeconds();
    Check("staged");
    const double copy = CopySeconds();  // and also overwrites the split regions
    const double pulled = PullSeconds();
    Check("pulled");
    Spoil();
    PullBack();
    ExpectWhole(before);
    const auto bytes = static_cast<double>(kv_.moved_bytes());
    out_.Add({.name = "kv_by_head, 8 ranks",
              .value = 1e-9 * bytes / pulled,
              .unit = "GB/s",
              .ceiling = 1e-9 * bytes / copy,
              .ceiling_is = "GB/s of a copy of the same bytes",
              .goal = 0.75,
              .note = watch_.Note()});
    out_.Add({.name = "kv_by_head, 8 ranks, over pack + all-to-all + unpack",
              .value = staged / pulled,
              .unit = "times as fast",
              .goal = 2,
              .note = fmt::format("staged: {:.0f} GB/s", 1e-9 * bytes / staged)});
  }

 private:
  Buffers Regions(uint64_t bytes) const {
    Buffers out;
    for (uint64_t r = 0; r < kRanks; ++r) out.push_back(std::make_unique<Buffer>(gpu_, bytes));
    return out;
  }
  uint32_t BlocksOfEach() const {
    return std::max<uint32_t>(1, AllBlocks(gpu_) / static_cast<uint32_t>(kRanks));
  }

  // Random bytes: a pool that is repeated, each time from another offset.
  void Fill() {
    std::vector<std::byte> pool(std::min<uint64_t>(32 << 20, whole_[0]->bytes()));
    Draw(3).Fill(pool);
    const auto device = UploadList(gpu_, pool);
    Draw places(4);
    for (const auto& region : whole_) {
      for (uint64_t at = 0; at < region->bytes();) {
        const uint64_t from = 16 * places.Below(pool.size() / 32);
        const uint64_t bytes = std::min(pool.size() - from, region->bytes() - at);
        Copy(gpu_, region->address() + at, device->address() + from, bytes, gpu_.stream());
        at += bytes;
      }
    }
    gpu_.Wait();
  }
  // Changes the bytes at every place: neighbours exchange their contents.
  void Spoil() {
    for (uint64_t r = 0; r < kRanks; ++r) {
      Copy(gpu_, whole_[r]->address(), split_[r]->address(),
           std::min(whole_[r]->bytes(), split_[r]->bytes()), gpu_.stream());
    }
    gpu_.Wait();
  }

  // Hashes of the filled K and V of every block of every layer.
  std::vector<uint64_t> HashWhole() const {
    const KvShape& shape = kv_.shape();
    const uint64_t block_bytes = shape.block_bytes(shape.heads);
    std::vector<HashList::Bytes> ranges;
    for (uint64_t r = 0; r < kRanks; ++r) {
      for (const KvBlock& block : kv_.blocks(r)) {
        for (uint64_t layer = 0; layer < shape.layers; ++layer) {
          for (uint64_t part = 0; part < 2; ++part) {
            ranges.push_back({whole_[r]->address() +
                                  (layer * kv_.most_blocks() + block.number) * block_bytes +
                                  part * shape.part_bytes(shape.heads),
                              block.tokens * shape.heads * shape.row_bytes});
          }
        }
      }
    }
    return HashList(gpu_, ranges).Hashes(kernels_);
  }
  void ExpectWhole(const std::vector<uint64_t>& before) {
    if (HashWhole() != before) return out_.Wrong("KV differs after it went there and back");
    out_.Right("parts of blocks equal by hash after they went there and back", before.size());
  }

  // Compares some rows, by their meaning.
  void Check(const char* how) {
    const KvShape& shape = kv_.shape();
    Draw draw(9);
    constexpr uint64_t kSamples = 500;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const uint64_t home = draw.Below(kRanks), rank = i % kRanks, head = kv_.HeadOf(rank);
      const KvBlock& block = kv_.blocks(home)[draw.Below(kv_.blocks(home).size())];
      const uint64_t layer = draw.Below(shape.layers), part = draw.Below(2),
                     token = draw.Below(block.tokens);
      const auto row = [&](const Buffers& regions, uint64_t of, uint64_t blocks, uint64_t number,
                           uint64_t heads, uint64_t h) {
        const uint64_t page =
            (layer * blocks + number) * 2 * shape.tokens * heads * shape.row_bytes;
        const uint64_t in = (part * shape.tokens + token) * heads + h;
        return Download(gpu_, regions[of]->address() + page + in * shape.row_bytes,
                        shape.row_bytes);
      };
      if (row(whole_, home, kv_.most_blocks(), block.number, shape.heads, head) !=
          row(split_, rank, kv_.all_blocks(), block.split, 1, 0)) {
        return out_.Wrong(
            fmt::format("KV, {}: rank {} has another row of layer {}, block {}, head {}", how, rank,
                        layer, block.split, head));
      }
    }
    out_.Right(fmt::format("rows of KV compared byte for byte, {}", how), kSamples);
  }

  double CopySeconds() {
    const uint64_t bytes = kv_.moved_bytes() / kRanks;  // each rank fetches the same amount
    return watch_.Seconds(kRounds, [&] {
      for (uint64_t r = 0; r < kRanks; ++r) {
        const uint64_t from = whole_[r]->bytes();
        for (uint64_t at = 0; at < bytes; at += from) {
          Copy(gpu_, split_[r]->address() + at, whole_[r]->address(), std::min(from, bytes - at),
               watch_.stream(r));
        }
      }
    });
  }

  double PullSeconds() {
    std::vector<std::unique_ptr<MoveList>> lists;
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<kernels::KvMove> moves;
      for (uint64_t i = 1; i <= kRanks; ++i) {  // starts with its neighbour
        const uint64_t home = (rank + i) % kRanks;
        for (const KvBlock& block : kv_.blocks(home)) {
          moves.push_back(kv_.MoveOf(kv_.Split(split_, rank, block),
                                     kv_.Whole(whole_, home, block, kv_.HeadOf(rank)),
                                     block.tokens));
        }
      }
      lists.push_back(std::make_unique<MoveList>(gpu_, std::move(moves)));
    }
    return watch_.Seconds(kRounds, [&] {
      for (uint64_t r = 0; r < kRanks; ++r) {
        lists[r]->Launch(kernels_, BlocksOfEach(), watch_.stream(r));
      }
    });
  }

  // Fetches every head from one of the two ranks that have it.
  void PullBack() {
    const uint64_t copies = kRanks / kHeads;
    for (uint64_t home = 0; home < kRanks; ++home) {
      std::vector<kernels::KvMove> moves;
      for (const KvBlock& block : kv_.blocks(home)) {
        for (uint64_t head = 0; head < kHeads; ++head) {
          const uint64_t from = head * copies + (home + head) % copies;
          moves.push_back(kv_.MoveOf(kv_.Whole(whole_, home, block, head),
                                     kv_.Split(split_, from, block), block.tokens));
        }
      }
      const MoveList list(gpu_, std::move(moves));
      list.Launch(kernels_, AllBlocks(gpu_), gpu_.stream());
      gpu_.Wait();
    }
  }

  // A part of a buffer has one rank's blocks of another rank's head, in the format of a region.
  double StagedSeconds() {
    const KvShape& shape = kv_.shape();
    const Exchange exchange(gpu_, kRanks, shape.layers * kv_.most_blocks() * shape.block_bytes(1));
    std::vector<std::unique_ptr<MoveList>> packs, unpacks;
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<kernels::KvMove> pack, unpack;
      for (uint64_t peer = 0; peer < kRanks; ++peer) {
        for (const KvBlock& block : kv_.blocks(rank)) {
          pack.push_back(
              kv_.MoveOf({exchange.SendAt(rank, peer), kv_.most_blocks(), 1, block.number, 0},
                         kv_.Whole(whole_, rank, block, kv_.HeadOf(peer)), block.tokens));
        }
        for (const KvBlock& block : kv_.blocks(peer)) {
          unpack.push_back(
              kv_.MoveOf(kv_.Split(split_, rank, block),
                         {exchange.ReceivedAt(rank, peer), kv_.most_blocks(), 1, block.number, 0},
                         block.tokens));
        }
      }
      packs.push_back(std::make_unique<MoveList>(gpu_, std::move(pack)));
      unpacks.push_back(std::make_unique<MoveList>(gpu_, std::move(unpack)));
    }
    const auto launch = [&](const auto& lists) {
      return [&](uint64_t r) { lists[r]->Launch(kernels_, BlocksOfEach(), watch_.stream(r)); };
    };
    return watch_.Seconds(kRounds, [&] { exchange.Put(&watch_, launch(packs), launch(unpacks)); });
  }

  const Gpu& gpu_;
  const Kernels& kernels_;
  const KvRanks& kv_;
  Recorder& out_;
  const Buffers whole_, split_;
  Stopwatch watch_;
};

}  // namespace

void RunKv(const Task& task) {
  const Gpu gpu(task.driver);
  const Kernels kernels(gpu);
  const KvRanks kv = KvFor(gpu, task.small);
  task.out->Fact("shape",
                 fmt::format("{} blocks of 16 positions, {} of {} layers, {} KV heads on {} "
                             "ranks: {:.2f} GB are written",
                             kv.all_blocks(), kv.shape().layers, kLayers, kHeads, kRanks,
                             1e-9 * static_cast<double>(kv.moved_bytes())));
  task.out->Fact("what it measures", "the memory of one GPU: no byte crosses a link");
  KvMoveBench(gpu, kernels, kv, task.out).Run();
}

}  // namespace tangram::gpu
