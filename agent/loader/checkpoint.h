// A Hugging Face checkpoint of the Qwen3-MoE family: config.json and one safetensors file,
// or shards with model.safetensors.index.json. Gives geometry, granules and dense tensors.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/layout/geometry.h"
#include "agent/loader/file.h"
#include "agent/loader/safetensors.h"

namespace tangram::loader {

// A tensor outside the routed experts and its place in the dense region
// (docs/architecture.md, section 8, "Dense weights").
struct DenseTensor {
  std::string name;
  TensorInfo info;
  uint64_t offset = 0;  // in the dense region
};

class Checkpoint {
 public:
  // Reads config.json and every header, and checks that the tensors are those of the declared
  // model: each expert's gate and up [I, H] and down [H, I], one dtype for all of them.
  // kInvalid names file and tensor; kBadGeometry names the tensor and both shapes.
  static Result<std::shared_ptr<const Checkpoint>> Open(const std::string& directory,
                                                        uint32_t granule_rows, uint64_t page_bytes);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const layout::GeometryView& geometry() const { return *geometry_; }
  const std::string& config_json() const { return config_json_; }
  const std::vector<DenseTensor>& dense() const { return dense_; }

  // Whether every file is still what it was when it was opened, and can be read: not deleted, cut
  // short or replaced, no I/O error at its end. kInvalid names the file. Thread-safe; may hang with
  // a network file system.
  Status StillReadable() const;

  // What was asked of its files so far, headers too.
  struct Reads {
    uint64_t calls = 0, bytes = 0;
  };
  Reads reads() const;

  // Granules [run.start, run.start + run.count) of an expert, granule-major, into `out`
  // (run.count * granule_bytes), and what each hashes to (device::HashOf) into `hashes`, of
  // run.count; empty: nobody asks.
  struct Target {
    layout::Run run;
    std::span<std::byte> out;
    std::span<uint64_t> hashes;
  };
  // Runs of one expert without a granule in common; each byte is read once, and hashed as it comes.
  // Some of the columns of `down` cost a read for each of its rows, all of them together a few
  // large ones: who reads for several asks for all of theirs at once. Takes kBlock bytes of each
  // thread, or 64 rows of `down` if these are more. kInvalid: the runs are not there, or cannot be
  // read (file and place). Thread-safe.
  static constexpr uint64_t kBlock = 256 << 10;
  Status ReadRuns(uint32_t layer, uint32_t expert, std::span<const Target> targets) const;
  Status ReadGranules(uint32_t layer, uint32_t expert, layout::Run run,
                      std::span<std::byte> out) const {
    const Target target{run, out, {}};
    return ReadRuns(layer, expert, {&target, 1});
  }
  // The bytes of dense tensor `index`, as in the file, and their hash, if it is asked for.
  // Thread-safe.
  Status ReadDense(size_t index, std::span<std::byte> out, uint64_t* hash = nullptr) const;

 private:
  struct Place {
    const File* file = nullptr;
    TensorInfo info;
  };
  struct Expert {
    Place gate, up, down;
  };

  Checkpoint() = default;
  Status ReadHeaders(const std::string& directory);
  Status ReadHeader(const std::string& path);
  Status BuildGeometry(uint32_t granule_rows, uint64_t page_bytes);
  Status FindExperts(const v1::Geometry& declared);
  void PlaceDense();
  Result<Place> Take(const std::string& name, uint64_t rows, uint64_t columns);

  // granules.cc
  struct Granule;
  Status ReadRows(const Place& place, uint64_t at, std::span<Granule> granules) const;
  Status ReadColumns(const Place& down, std::span<Granule> granules) const;

  std::string config_json_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> tensors_;      // those not taken by an expert are dense
  std::vector<std::vector<Expert>> experts_;  // [MoE ordinal][expert]
  std::vector<DenseTensor> dense_;
  std::vector<Place> dense_places_;
  std::unique_ptr<layout::GeometryView> geometry_;
};

}  // namespace tangram::loader
