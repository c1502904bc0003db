#if defined(__x86_64__)
#define TANGRAM_KERNEL kHashAvx2
#include "agent/device/hash_kernel.inc"
#endif
