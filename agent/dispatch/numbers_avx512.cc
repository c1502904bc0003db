#if defined(__x86_64__)
#define TANGRAM_KERNEL kNumbersAvx512
#define TANGRAM_KERNELS kernels_avx512
#include "agent/dispatch/numbers_kernel.inc"
#endif
