// One call: rows routed, gate and up, then down.
#ifndef AGENT_VLLM_OPS_RUN_H_
#define AGENT_VLLM_OPS_RUN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/vllm/ops/experts.h"
#include "agent/vllm/ops/kernel.h"
#include "agent/vllm/ops/pool.h"
#include "agent/vllm/ops/routes.h"

namespace tangram::experts {

// The checked arguments of a call.
struct Call {
  tg_experts_shape shape;
  std::span<const tg_experts_piece> pieces;
  const Kernel* kernel;
  const float* x;
  const int32_t* ids;
  const float* weights;
  uint32_t rows, top_k;
  float* y;
};

// A plain product, checked: y [rows, n] of x [rows, k] and weight [n, k], elements of one type.
struct Product {
  bool f32;
  const void* weight;
  uint32_t n, k;
  const Kernel* kernel;
  const void* x;
  uint32_t rows;
  void* y;
  size_t y_pitch;
};

class Runner {
 public:
  explicit Runner(uint32_t threads) : pool_(threads) {}

  // std::bad_alloc before y is touched.
  void Run(const Call& call);
  void Run(const Product& product);

 private:
  struct Strip {  // of a piece, for all its tokens
    uint32_t piece, first, rows;
  };

  // Computes the activations of all pieces, one after another, into activations_.
  void GateUp(const Call& call);
  void Down(const Call& call);

  Pool pool_;
  Routes routes_;
  std::vector<uint8_t> operands_;     // x in the kernel's type; unused if that is x itself
  std::vector<uint8_t> activations_;  // by piece: [tokens, its rows]
  std::vector<size_t> begin_;         // by piece: bytes into activations_
  std::vector<Strip> strips_;
  std::vector<std::vector<float>> scratch_;  // by thread
  std::vector<float> wide_;                  // of a product in BF16: [rows, k], then [rows, n]
};

}  // namespace tangram::experts

#endif  // AGENT_VLLM_OPS_RUN_H_
