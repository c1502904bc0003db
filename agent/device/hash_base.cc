#define TANGRAM_KERNEL kHashBase
#include "agent/device/hash_kernel.inc"
