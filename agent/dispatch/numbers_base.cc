#define TANGRAM_KERNEL kNumbersBase
#define TANGRAM_KERNELS kernels_base
#include "agent/dispatch/numbers_kernel.inc"
