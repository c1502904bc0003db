// A Hugging Face checkpoint of a supported family (styles.h): config.json and one safetensors file,
// or shards (folder.h). Provides geometry, granules, tails and dense tensors.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"
#include "agent/layout/geometry.h"
#include "agent/loader/config.h"
#include "agent/loader/file.h"
#include "agent/loader/safetensors.h"
#include "agent/loader/styles.h"

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
  // model: for each expert those of its style, one dtype for all weights and one for all scales.
  // kInvalid names file and tensor; kBadGeometry names the tensor and both shapes. `granule_rows`
  // 0: layout::DefaultGranuleRows. `format`: the slab format of pieces, and so the order of a
  // granule's bytes.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      const std::string& directory, uint32_t granule_rows, uint64_t page_bytes,
      v1::SlabFormat format = v1::SLAB_FORMAT_GRANULE_MAJOR);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const layout::GeometryView& geometry() const { return *geometry_; }
  const std::string& config_json() const { return config_json_; }
  const std::vector<DenseTensor>& dense() const { return dense_; }

  // Checks that every file is readable and unchanged since it was opened: not deleted, truncated or
  // replaced, no I/O error at its end. kInvalid names the file. Thread-safe; may block forever on a
  // network file system.
  Status StillReadable() const;

  // Reads of its files so far, headers included.
  struct Reads {
    uint64_t calls = 0, bytes = 0;
  };
  Reads reads() const;

  // Granules [run.start, run.start + run.count) of an expert, one after another, into `out`
  // (run.count * granule_bytes), or from granule `unit` on into the slab `out` of this shape. Their
  // hashes (device::HashOf) go into `hashes` (run.count of them; empty: not requested). The
  // expert's tail goes into `tail` (tail_bytes; empty: not requested), with its hash.
  struct Target {
    layout::Run run;
    std::span<std::byte> out;
    std::span<uint64_t> hashes;
    std::span<std::byte> tail = {};
    uint64_t* tail_hash = nullptr;
    const device::Shape* shape = nullptr;
    uint64_t unit = 0;
  };
  // Runs of one expert without a common granule. Each byte is read once, even if several targets
  // request the tail, and hashed as it arrives. A part of the columns of `down` costs one read per
  // row; all columns together cost a few large reads. So a caller that reads for several ranks
  // passes all their targets together. Uses kBlock bytes per thread, or 64 rows of `down` if these
  // are larger. kInvalid: the runs do not exist or cannot be read (with file and offset).
  // Thread-safe.
  static constexpr uint64_t kBlock = 256 << 10;
  Status ReadRuns(uint32_t layer, uint32_t expert, std::span<const Target> targets) const;
  Status ReadGranules(uint32_t layer, uint32_t expert, layout::Run run,
                      std::span<std::byte> out) const {
    const Target target{run, out, {}, {}, nullptr};
    return ReadRuns(layer, expert, {&target, 1});
  }
  // The bytes of dense tensor `index`, as in the file, and their hash (null: not requested).
  // Thread-safe.
  Status ReadDense(size_t index, std::span<std::byte> out, uint64_t* hash = nullptr) const;

 private:
  struct Place {
    const File* file = nullptr;
    TensorInfo info;
  };
  // A tensor of an expert, or of all experts of a layer: `stride` bytes from one to the next.
  struct Part {
    const File* file = nullptr;
    uint64_t begin = 0, stride = 0;
  };

  Checkpoint() = default;
  Status ReadHeaders(const std::string& directory);
  // Takes the tensors of the file that the index places there.
  Status ReadHeader(const std::string& path, const std::string& name_in_index,
                    const std::map<std::string, std::string>& weight_map);
  Status BuildGeometry(uint32_t granule_rows, uint64_t page_bytes, v1::SlabFormat format);
  Status FindExperts(const Declared& config);
  // Removes tensors that transformers ignores too: layers after the last (multi-token prediction),
  // rotary frequencies of old checkpoints, a head that is the embedding.
  void LeaveOut(const Declared& config);
  void PlaceDense();
  Result<Place> Take(const std::string& name, const std::vector<uint64_t>& shape);
  Status TakeExperts(const std::string& prefix, const v1::Geometry& declared,
                     std::vector<Part>* parts);

  // granules.cc
  struct Granule;
  Status ReadRows(const Section& section, const Part& part, std::span<Granule> granules) const;
  Status ReadColumns(const Section& section, const Part& part, std::span<Granule> granules) const;
  static Status ReadBlock(const Section& section, const Part& part, uint64_t row, uint64_t rows,
                          uint32_t granule, uint64_t width, std::span<std::byte> out);
  static void Turn(const Section& section, uint64_t row, uint64_t rows,
                   std::span<const std::byte> block, std::span<Granule> granules);
  static void Cut(const Section& section, uint64_t row, uint64_t rows,
                  std::span<const std::byte> block, std::span<Granule> granules);
  Status ReadTail(const Part& part, std::span<const Target> targets) const;

  std::string config_path_, config_json_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> tensors_;  // in the end the dense ones, which no expert took
  const Style* style_ = nullptr;
  v1::DType dtype_ = v1::DTYPE_UNSPECIFIED, scales_ = v1::DTYPE_UNSPECIFIED;  // of experts
  std::vector<Section> sections_;         // by tensor of the style
  std::vector<std::vector<Part>> parts_;  // [MoE ordinal][expert (if not stacked), tensor]
  std::vector<DenseTensor> dense_;
  std::vector<Place> dense_places_;
  std::unique_ptr<layout::GeometryView> geometry_;
};

}  // namespace tangram::loader
