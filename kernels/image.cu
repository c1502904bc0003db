// The entries of all kernels. Their bodies are headers, compiled once for GPUs here and once for
// the host in kernels.cc.
#include "kernels/list.h"

#define TANGRAM_ENTRY(name, Parameters, Body)                                                     \
  extern "C" __global__ void __launch_bounds__(tangram::kernels::kMostThreads)                    \
      name(const __grid_constant__ tangram::kernels::Parameters parameters) {                     \
    tangram::kernels::DirectMemory memory;                                                        \
    tangram::kernels::Body({blockIdx.x, gridDim.x, threadIdx.x, blockDim.x}, parameters, memory); \
  }

TANGRAM_KERNELS(TANGRAM_ENTRY)
