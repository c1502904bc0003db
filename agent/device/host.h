// The host backend: one memfd arena, populated by its owner, cut into pages of 4 KiB.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "agent/base/unique_fd.h"
#include "agent/device/device.h"

namespace tangram::device {

class HostDevice final : public Device {
 public:
  static constexpr uint64_t kPage = 4096;

  // An arena of `bytes` (rounded up to a page), touched here so that the owner's cgroup pays.
  // `read_only`: the descriptor that others are given is open for reading alone (weights);
  // otherwise they may map it for writing (KV, control).
  static Result<std::unique_ptr<HostDevice>> Make(const std::string& name, uint64_t bytes,
                                                  bool read_only);
  // Takes over the arena of a process of ours that died, by a descriptor that somebody kept; all
  // of it is free until Claim. kInvalid when it is not such an arena of `bytes`.
  static Result<std::unique_ptr<HostDevice>> Adopt(int fd, uint64_t bytes, bool read_only);
  // A device without memory of its own, for importing.
  static std::unique_ptr<HostDevice> Importer();
  ~HostDevice() override;

  const char* name() const override { return "host"; }
  uint64_t granularity() const override { return kPage; }
  uint64_t total_bytes() const override { return total_; }
  uint64_t free_bytes() const override;

  Result<std::unique_ptr<Range>> Reserve(uint64_t bytes) override;
  Result<HandlePtr> Create(uint64_t bytes) override;
  Result<HandlePtr> Claim(std::span<const Extent> extents) override;
  Result<Export> ExportHandle(const HandlePtr& handle) override;
  Result<HandlePtr> Import(int fd, std::span<const Extent> extents) override;
  Status Map(Range& range, uint64_t offset, const HandlePtr& handle) override;
  Status SetAccess(Range& range, uint64_t offset, uint64_t bytes, Access access) override;
  Status Unmap(Range& range, uint64_t offset) override;
  void Copy(std::byte* to, const std::byte* from, uint64_t bytes) override;

  // For others.
  int fd() const { return arena_ == nullptr ? -1 : arena_->shown.get(); }

 private:
  // Free pages of the memfd, as runs. Shared with every handle, so that a handle that
  // outlives the device gives its pages back to something that is there.
  struct Arena {
    ~Arena();
    // The smallest run that fits, else runs from the front; log n in the free runs for each that
    // it takes. Empty: not enough.
    std::vector<Extent> Take(uint64_t bytes);
    void Give(std::span<const Extent> extents);
    void GiveLocked(std::span<const Extent> extents);
    // All of them or none; false: some byte is not free.
    bool Claim(std::span<const Extent> extents);
    Status Open(bool read_only);

    int fd = -1;
    UniqueFd shown;              // what others are given
    std::byte* owner = nullptr;  // the owner's mapping
    uint64_t bytes = 0;
    mutable std::mutex mu;
    using Runs = std::map<uint64_t, uint64_t>;  // offset -> length
    void Insert(uint64_t offset, uint64_t length);
    void Erase(Runs::iterator run);
    Runs free;
    std::set<std::pair<uint64_t, uint64_t>> by_length;  // the same runs, (length, offset)
    uint64_t free_bytes = 0;
  };
  struct HostHandle;
  struct HostRange;

  HostDevice() = default;
  static void Clear(HostRange& range, uint64_t offset, uint64_t bytes);

  std::shared_ptr<Arena> arena_;
  uint64_t total_ = 0;
};

}  // namespace tangram::device
