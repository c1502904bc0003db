// Every kernel: its name, by which the driver finds it in the image, its parameters, and its body.
// The image's entries (image.cu) and the table of twins (kernels.cc) are both made of this.
#pragma once

#include "kernels/copy_strips.h"
#include "kernels/gather_blocks.h"
#include "kernels/hash.h"
#include "kernels/kv.h"
#include "kernels/load_histogram.h"
#include "kernels/partial_sums.h"

#define TANGRAM_KERNELS(X)                                  \
  X(hash_sums, HashParameters, HashSums)                    \
  X(copy_hash, HashParameters, CopyHash)                    \
  X(hash_chain, HashParameters, HashChain)                  \
  X(copy_strips, CopyStripsParameters, CopyStrips)          \
  X(kv_by_head, KvByHeadParameters, KvByHead)               \
  X(kv_latent, KvLatentParameters, KvLatent)                \
  X(gather_blocks, GatherBlocksParameters, GatherBlocks)    \
  X(load_histogram, LoadHistogramParameters, LoadHistogram) \
  X(partial_sums, PartialSumsParameters, PartialSums)
