#if defined(__x86_64__)
#define TANGRAM_KERNEL kNumbersAvx2
#define TANGRAM_KERNELS kernels_avx2
#include "agent/dispatch/numbers_kernel.inc"
#endif
