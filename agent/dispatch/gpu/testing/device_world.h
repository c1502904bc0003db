// Ranks as threads of one process, each with buffers in device memory and a queue: the host's,
// where kernels are their twins, or a GPU's over the recording driver.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/device/platform.h"
#ifdef TANGRAM_FAKE_CUDA
#include "agent/device/testing/fake_cuda.h"
#include "agent/device/testing/fake_nccl.h"
#endif
#include "agent/dispatch/gpu/device_buffer.h"
#include "agent/dispatch/testing/world.h"

namespace tangram::dispatch::testing {

// The memory of the ranks, and the transport between them.
enum class Where { kHost, kCuda, kImported, kNccl, kUcx };

inline const char* NameOf(Where where) {
  return where == Where::kHost       ? "OnTheHost"
         : where == Where::kCuda     ? "OnCuda"
         : where == Where::kImported ? "OnCudaImported"
         : where == Where::kNccl     ? "ByNccl"
                                     : "ByUcx";
}

// Kernels are their twins.
inline bool OnHost(Where where) { return where == Where::kHost || where == Where::kUcx; }

// The library that carries rows between ranks that do not reach each other's memory.
inline const char* LibraryOf(Where where) {
  return where == Where::kNccl ? "nccl" : where == Where::kUcx ? "ucx" : nullptr;
}

class DeviceRank {
 public:
  DeviceRank(device::Platform& platform, const MemberId& self, const DeviceOptions& options,
             void* stream = nullptr)
      : options_(options) {
    auto queue = platform.OpenQueue(stream);
    EXPECT_TRUE(queue.ok()) << queue.status().message();
    queue_ = std::move(queue).value();
    const uint64_t unit = platform.granularity();
    // Includes the caller's arrays; each is rounded up to handles.
    const uint64_t bytes =
        DeviceBuffer::GetBufferSizeHint(options, true) + kOwn + (2 * options.most_ranks + 4) * unit;
    auto made = platform.Make(self.name, {(bytes + unit - 1) / unit * unit, unit, 1 << 20});
    EXPECT_TRUE(made.ok()) << made.status().message();
    devices_ = std::move(made).value();
    auto buffer = DeviceBuffer::Create(self, options, *devices_.weights, *queue_);
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    buffer_ = std::move(buffer).value();
    auto own = DeviceMemory::Make(*devices_.weights, kOwn);
    EXPECT_TRUE(own.ok()) << own.status().message();
    own_ = std::move(own).value();
  }

  DeviceBuffer& buffer() { return *buffer_; }
  device::Queue& queue() { return *queue_; }
  device::Device& device() { return *devices_.weights; }
  const Format& format() const { return options_.format; }
  const DeviceOptions& options() const { return options_; }

  // Copies rows into this rank's memory; `set`: one of two places.
  DeviceRows Put(const Own& own, size_t set = 0) {
    const Rows rows = own.rows(format().x);
    uint64_t at = own_.at() + set * kOwn / 4;
    const auto put = [&](const void* from, uint64_t bytes) {
      if (bytes > 0) EXPECT_TRUE(Upload(*queue_, at, from, bytes).ok());
      return std::exchange(at, at + (bytes + 127) / 128 * 128);
    };
    DeviceRows out;
    out.count = own.count;
    out.x = put(rows.x, own.count * RowBytes(format().x, format().hidden));
    out.experts = put(rows.experts, own.experts.size() * 4);
    out.weights = put(rows.weights, own.weights.size() * 4);
    return out;
  }
  uint64_t y(size_t set = 0) const { return own_.at() + kOwn / 2 + set * kOwn / 8; }
  uint64_t outputs() const { return own_.at() + 3 * kOwn / 4; }
  std::vector<uint8_t> Y(uint32_t count, size_t set = 0) {
    return DownloadList<uint8_t>(*queue_, y(set),
                                 count * format().hidden * BytesOf(format().sums) + 8)
        .value();
  }
  // Fills the memory after y too: it must stay unchanged.
  void ClearY(uint32_t count, size_t set = 0) {
    const std::vector<uint8_t> pattern(count * format().hidden * BytesOf(format().sums) + 8, 0x5a);
    EXPECT_TRUE(Upload(*queue_, y(set), pattern.data(), pattern.size()).ok());
  }

  // Received data, copied to the host.
  struct Came {
    Packed packed;
    std::vector<uint8_t> x;
    std::vector<float> scales;
    std::vector<uint32_t> choices, counts, offsets;
  };
  std::unique_ptr<Came> Fetch(const Handle& handle) {
    const DevicePacked from = buffer_->packed(handle);
    auto out = std::make_unique<Came>();
    const auto rows = DownloadList<uint32_t>(*queue_, from.rows, 1).value()[0];
    out->choices = from.choices;
    out->counts = DownloadList<uint32_t>(*queue_, from.counts, from.choices.size()).value();
    out->offsets = DownloadList<uint32_t>(*queue_, from.offsets, from.choices.size() + 1).value();
    out->x = DownloadList<uint8_t>(*queue_, from.x, rows * format().hidden * BytesOf(format().wire))
                 .value();
    if (from.scales != 0)
      out->scales =
          DownloadList<float>(*queue_, from.scales, rows * ScalesOf(format().wire, format().hidden))
              .value();
    out->packed = {rows, out->x.data(), out->scales.data(), out->choices, out->counts};
    return out;
  }
  // The experts' work, computed on the host.
  void Compute(const LayerRoutes& layer, const Handle& handle, uint64_t outputs) {
    const auto came = Fetch(handle);
    std::vector<uint8_t> out(came->packed.rows * RowBytes(format().outputs(), format().hidden));
    testing::Compute(format(), layer, came->packed, out.data());
    if (!out.empty()) EXPECT_TRUE(Upload(*queue_, outputs, out.data(), out.size()).ok());
  }

 private:
  static constexpr uint64_t kOwn = 8 << 20;

  const DeviceOptions options_;
  std::unique_ptr<device::Queue> queue_;
  device::RankDevices devices_;
  DeviceMemory own_;
  std::unique_ptr<DeviceBuffer> buffer_;
};

class DeviceWorld {
 public:
  DeviceWorld(Where where, uint32_t ranks, const DeviceOptions& options) : where_(where) {
    device::PlatformOptions platform;
#ifdef TANGRAM_FAKE_CUDA
    if (!OnHost(where)) {
      platform.name = "cuda";
      platform.driver = TANGRAM_FAKE_CUDA;
      platform.map_bytes = 2 << 20;
    }
#endif
    auto made = device::MakePlatform(platform);
    EXPECT_TRUE(made.ok()) << made.status().message();
    platform_ = std::move(made).value();
    importers_ = platform_->Importers();
    for (uint32_t r = 0; r < ranks; ++r) {
      ids_.push_back({std::string(1, static_cast<char>('a' + r)), 1});
      ranks_.push_back(std::make_unique<DeviceRank>(*platform_, ids_.back(), options));
    }
    for (uint32_t r = 0; r < ranks; ++r)
      for (uint32_t s = r + 1; s < ranks; ++s) Connect(r, s);
  }

  // Fails if a recording library rejected a call or had to guess.
  ~DeviceWorld() {
    ranks_.clear();
    wires_.reset();
    importers_ = {};
    platform_.reset();
#ifdef TANGRAM_FAKE_CUDA
    if (OnHost(where_)) return;
    EXPECT_EQ(device::testing::FakeCuda::Complaint(), "");
    EXPECT_EQ(device::testing::FakeCuda::Leaks(), "");
    EXPECT_EQ(device::testing::FakeNccl::Complaint(), "");
    EXPECT_EQ(device::testing::FakeNccl::Open(), 0u);
#endif
  }
  DeviceWorld(const DeviceWorld&) = delete;
  DeviceWorld& operator=(const DeviceWorld&) = delete;

  size_t size() const { return ranks_.size(); }
  DeviceRank& operator[](size_t rank) { return *ranks_[rank]; }
  const std::vector<MemberId>& ids() const { return ids_; }
  device::Platform& platform() { return *platform_; }

  void Enter(uint64_t epoch, Layout& layout) {
    std::vector<uint32_t> all(ranks_.size());
    for (uint32_t r = 0; r < all.size(); ++r) all[r] = r;
    Enter(epoch, all, layout);
  }
  // A world of only these members, in this order.
  void Enter(uint64_t epoch, const std::vector<uint32_t>& who, Layout& layout) {
    std::vector<MemberId> members;
    for (const uint32_t w : who) members.push_back(ids_[w]);
    for (uint32_t r = 0; r < who.size(); ++r) {
      DeviceRank& rank = *ranks_[who[r]];
      const Status entered =
          rank.buffer().UpdateMembers(epoch, members, RoutesOf(layout, r), rank.queue());
      EXPECT_TRUE(entered.ok()) << entered.message();
    }
  }

 private:
  void Connect(uint32_t r, uint32_t s) {
    DeviceRank &one = *ranks_[r], &other = *ranks_[s];
    if (where_ == Where::kImported) {
      // Memory as another process has it: by descriptors.
      const auto reach = [&](DeviceRank& from, const MemberId& self, DeviceRank& to,
                             const MemberId& id) {
        const auto inbox = to.buffer().ExportTo(self, to.queue());
        ASSERT_TRUE(inbox.ok()) << inbox.status().message();
        const Status attached = from.buffer().Attach(id, *importers_.weights, *inbox);
        EXPECT_TRUE(attached.ok()) << attached.message();
      };
      reach(one, ids_[r], other, ids_[s]);
      reach(other, ids_[s], one, ids_[r]);
      return;
    }
    if (LibraryOf(where_) == nullptr) {
      EXPECT_TRUE(
          one.buffer().Attach(ids_[s], other.buffer().Grant(ids_[r], other.queue()).value()).ok());
      EXPECT_TRUE(
          other.buffer().Attach(ids_[r], one.buffer().Grant(ids_[s], one.queue()).value()).ok());
      return;
    }
    if (wires_ == nullptr) {
      device::WireOptions options{.name = LibraryOf(where_),
                                  .library = "",
                                  .buffer_bytes = DeviceBuffer::WireBytes(one.options())};
#ifdef TANGRAM_FAKE_NCCL
      if (where_ == Where::kNccl) options.library = TANGRAM_FAKE_NCCL;
#endif
      auto opened = platform_->OpenWires(options);
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      wires_ = std::move(opened).value();
    }
    LaneWires ends[2];
    ends[0].name = ends[1].name = wires_->name();
    for (size_t lane = 0; lane < kLanes; ++lane) {
      std::string hello, answer;
      ends[0].lanes[lane] = wires_->Offer(&hello).value();
      ends[1].lanes[lane] = wires_->Accept(hello, &answer).value();
      EXPECT_TRUE(ends[0].lanes[lane]->Answered(answer).ok());
      for (bool open = false; !open;) {
        const bool here = ends[0].lanes[lane]->Open().value();
        open = ends[1].lanes[lane]->Open().value() && here;
      }
    }
    EXPECT_TRUE(one.buffer().Attach(ids_[s], std::move(ends[0])).ok());
    EXPECT_TRUE(other.buffer().Attach(ids_[r], std::move(ends[1])).ok());
  }

  const Where where_;
  std::unique_ptr<device::Platform> platform_;
  std::unique_ptr<device::Wires> wires_;
  device::RankDevices importers_;
  std::vector<MemberId> ids_;
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
};

}  // namespace tangram::dispatch::testing
