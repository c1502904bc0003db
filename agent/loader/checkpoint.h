// A Hugging Face checkpoint of a supported family (styles.h): config.json and one safetensors file,
// or shards (folder.h). Gives geometry, granules, tails and dense tensors.
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
  // model: of each expert those that its style names, one dtype for all weights and one for all
  // scales.
  // kInvalid names file and tensor; kBadGeometry names the tensor and both shapes.
  // `granule_rows` 0: layout::DefaultGranuleRows.
  // `format`: how pieces are to lie in their slabs, and with it the order of a granule's bytes.
  static Result<std::shared_ptr<const Checkpoint>> Open(
      const std::string& directory, uint32_t granule_rows, uint64_t page_bytes,
      v1::SlabFormat format = v1::SLAB_FORMAT_GRANULE_MAJOR);
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

  // Granules [run.start, run.start + run.count) of an expert, one after another, into `out`
  // (run.count * granule_bytes), or into the slab `out` of this shape from granule `unit` of it on,
  // and what each hashes to (device::HashOf) into `hashes`, of run.count; empty: nobody asks. And
  // the expert's tail, into `tail` (tail_bytes; empty: nobody asks), with its hash.
  struct Target {
    layout::Run run;
    std::span<std::byte> out;
    std::span<uint64_t> hashes;
    std::span<std::byte> tail = {};
    uint64_t* tail_hash = nullptr;
    const device::Shape* shape = nullptr;
    uint64_t unit = 0;
  };
  // Runs of one expert without a granule in common; each byte is read once, however many want the
  // tail, and hashed as it comes.
  // Some of the columns of `down` cost a read for each of its rows, all of them together a few
  // large ones: who reads for several asks for all of theirs at once. Takes kBlock bytes of each
  // thread, or 64 rows of `down` if these are more. kInvalid: the runs are not there, or cannot be
  // read (file and place). Thread-safe.
  static constexpr uint64_t kBlock = 256 << 10;
  Status ReadRuns(uint32_t layer, uint32_t expert, std::span<const Target> targets) const;
  Status ReadGranules(uint32_t layer, uint32_t expert, layout::Run run,
                      std::span<std::byte> out) const {
    const Target target{run, out, {}, {}, nullptr};
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
  // A tensor of an expert, or of all experts of a layer: `stride` bytes from one to the next.
  struct Part {
    const File* file = nullptr;
    uint64_t begin = 0, stride = 0;
  };

  Checkpoint() = default;
  Status ReadHeaders(const std::string& directory);
  // Of the tensors that the index places takes those that it places here.
  Status ReadHeader(const std::string& path, const std::string& name_in_index,
                    const std::map<std::string, std::string>& weight_map);
  Status BuildGeometry(uint32_t granule_rows, uint64_t page_bytes, v1::SlabFormat format);
  Status FindExperts(const Declared& config);
  // What transformers ignores as well: layers behind the last, which guess further tokens
  // (multi-token prediction), rotary frequencies of old checkpoints, a head that is the embedding.
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
  std::map<std::string, Place> tensors_;  // those not taken by an expert are dense
  const Style* style_ = nullptr;
  v1::DType dtype_ = v1::DTYPE_UNSPECIFIED, scales_ = v1::DTYPE_UNSPECIFIED;  // of the experts
  std::vector<Section> sections_;         // by tensor of the style
  std::vector<std::vector<Part>> parts_;  // [MoE ordinal][expert (if not stacked), tensor]
  std::vector<DenseTensor> dense_;
  std::vector<Place> dense_places_;
  std::unique_ptr<layout::GeometryView> geometry_;
};

}  // namespace tangram::loader
