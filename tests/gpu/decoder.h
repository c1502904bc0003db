// Decoding on one GPU: weights that are equal on all ranks, the requests, their KV on virtual
// ranks, and a captured graph per layout. Tables in memory, which the graphs read, have the places
// of movable data (experts, pages).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/decoder_shape.h"
#include "tests/gpu/kernel.h"
#include "tests/gpu/timing.h"

namespace tangram::gpu {

class Decoder {
 public:
  // Requests begin with one token each, drawn from the seed.
  Decoder(const Gpu& gpu, const Kernels& kernels, const DecoderShape& shape, uint64_t seed);
  ~Decoder();

  // Adds a layout: memory for its KV, and its graph, which is instantiated only once. Requests on
  // the same rank as in layout `like` (-1: none) share that layout's pages.
  size_t Capture(const Mode& mode, int like = -1);
  // Device memory of all layouts' graphs.
  uint64_t graph_bytes() const { return graph_bytes_; }
  // Sets the places of the layout's experts: [rank][layer][expert], 0 where absent.
  void Place(size_t layout, const std::vector<uint64_t>& places);
  // Computes one token for each request.
  void Step(size_t layout);

  // Between steps: copies KV from one layout to another, without the requests of rows from `end`
  // on.
  void MoveKv(size_t from, size_t to, uint64_t end);
  // Restarts the requests from this row on: their KV is computed again from their tokens.
  void StartAgain(uint64_t row);

  // Logits of the last step; the state of the requests.
  std::vector<std::byte> Logits() const;
  struct Requests {
    std::vector<uint32_t> tokens, positions, known, history;
    bool operator==(const Requests&) const = default;
  };
  Requests Told() const;
  // Reads the KV of a layout, in the order of layers, requests, heads and blocks; and writes it.
  std::vector<std::byte> Kv(size_t layout) const;
  void Take(const Requests& requests, size_t layout, const std::vector<std::byte>& kv);

 private:
  struct Layout {
    Mode mode;
    std::vector<uint64_t> pages;  // [layer][row][KV head][block]
    Buffers kv;                   // [rank]
    std::unique_ptr<Buffer> page_tables, places;
    std::vector<uint64_t> table_at;  // [rank][layer]
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
  };

  template <typename Parameters>
  void Launch(const char* kernel, uint64_t results, const Parameters& parameters) const;
  void Attention(const Layout& layout, uint64_t layer) const;
  void Experts(const Layout& layout, uint64_t layer) const;
  void Put(const Layout& layout) const;  // enqueues all launches of a step
  void Matvec(uint64_t to, uint64_t from, uint64_t weights, uint64_t rows, uint64_t outputs,
              uint64_t columns, uint64_t weights_pitch = 0) const;
  size_t PageNumber(uint64_t layer, uint64_t row, uint64_t head, uint64_t block) const;
  void MakePages(Layout* layout, int like);

  // Matrices of a layer, one after another.
  struct Dense {
    uint64_t q = 0, k = 0, v = 0, o = 0, router = 0;
  };
  Dense Layer(uint64_t layer) const;

  const Gpu& gpu_;
  const Kernels& kernels_;
  const DecoderShape shape_;
  const Stream stream_;
  std::unique_ptr<Buffer> embedding_, head_, dense_, turns_;
  // State of the requests and of a step.
  std::unique_ptr<Buffer> tokens_, positions_, known_, history_, x_, n_, q_, k_, v_, mixed_,
      scores_, parts_, logits_, routed_, choices_, acts_;
  std::vector<std::unique_ptr<Layout>> layouts_;
  uint64_t graph_bytes_ = 0;
};

}  // namespace tangram::gpu
