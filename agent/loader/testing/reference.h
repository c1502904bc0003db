// What granules and tails must be, found the slow way: files that are read as a whole, headers
// that are parsed by themselves, and bytes that are taken element by element, as
// docs/architecture.md, section 8, has them. Nothing of it is the loader's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tangram::loader::testing {

class Reference {
 public:
  // The checkpoint must be a good one: what is not there throws.
  Reference(const std::string& directory, uint32_t granule_rows);

  std::string Granule(uint32_t layer, uint32_t expert, uint32_t granule) const;
  // The slab of `count` granules from `first` on, row-major, without the tail: rows `first *
  // granule_rows` and so on of each of the expert's tensors, or its columns, as the tensor has
  // them.
  std::string Rows(uint32_t layer, uint32_t expert, uint32_t first, uint32_t count) const;
  // Empty: experts of this family have none.
  std::string Tail(uint32_t layer, uint32_t expert) const;

 private:
  struct Stored {
    std::string data;
    std::vector<uint64_t> shape;
    uint64_t element = 0;  // bytes

    std::string At(std::vector<uint64_t> index) const;
  };
  const Stored& Of(const std::string& name) const;
  std::string PlainGranule(const std::string& expert, uint64_t first) const;
  std::string Scales(const std::string& expert, uint64_t first) const;
  std::string Cut(const std::string& tensor, const std::vector<uint64_t>& outer, size_t axis,
                  uint64_t first, uint64_t count) const;
  std::string StackedGranule(const std::string& layer, uint64_t expert, uint64_t first) const;
  std::string HalvesGranule(const std::string& layer, uint64_t expert, uint64_t first) const;
  std::string LayerName(uint32_t layer) const;

  std::map<std::string, Stored> tensors_;
  std::string model_, gate_ = "gate_proj", up_ = "up_proj", down_ = "down_proj";
  bool gpt_oss_ = false, llama4_ = false;
  uint64_t rows_ = 0, hidden_ = 0;
};

}  // namespace tangram::loader::testing
