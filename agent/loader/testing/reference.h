// Expected granules and tails, computed slowly: reads whole files, has its own parser of headers,
// and takes bytes element by element as docs/architecture.md, section 8, specifies. Uses no code of
// the loader.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tangram::loader::testing {

class Reference {
 public:
  // The checkpoint must be valid; missing tensors throw.
  Reference(const std::string& directory, uint32_t granule_rows);

  std::string Granule(uint32_t layer, uint32_t expert, uint32_t granule) const;
  // The row-major slab of `count` granules from `first` on, without the tail: rows from `first *
  // granule_rows` on of each of the expert's tensors, or columns, as the tensor has them.
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
