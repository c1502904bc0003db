// Every kernel: its name, by which the driver finds it in the image, its parameters, and its body.
// The image's entries (image.cu) and the table of twins (kernels.cc) are generated from this list.
#pragma once

#include "kernels/attention.h"
#include "kernels/copy_strips.h"
#include "kernels/decode.h"
#include "kernels/dispatch_combine.h"
#include "kernels/dispatch_pack.h"
#include "kernels/dispatch_plan.h"
#include "kernels/dispatch_send.h"
#include "kernels/dispatch_wait.h"
#include "kernels/experts.h"
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
  X(partial_sums, PartialSumsParameters, PartialSums)       \
  X(fill_bf16, FillParameters, FillBf16)                    \
  X(embed, EmbedParameters, Embed)                          \
  X(rms_norm, RmsNormParameters, RmsNorm)                   \
  X(matvec, MatvecParameters, Matvec)                       \
  X(rope, RopeParameters, Rope)                             \
  X(add_parts, AddPartsParameters, AddParts)                \
  X(pick_token, PickParameters, PickToken)                  \
  X(kv_write, KvWriteParameters, KvWrite)                   \
  X(attend_scores, AttendParameters, AttendScores)          \
  X(attend_mix, AttendParameters, AttendMix)                \
  X(route, RouteParameters, Route)                          \
  X(expert_up, ExpertParameters, ExpertUp)                  \
  X(expert_down, ExpertParameters, ExpertDown)              \
  X(dispatch_count, DispatchParameters, DispatchCount)      \
  X(dispatch_choose, DispatchParameters, DispatchChoose)    \
  X(dispatch_ranks, DispatchParameters, DispatchRanks)      \
  X(dispatch_slots, DispatchParameters, DispatchSlots)      \
  X(dispatch_send, DispatchParameters, DispatchSend)        \
  X(dispatch_flag, DispatchParameters, DispatchFlag)        \
  X(dispatch_wait, DispatchParameters, DispatchWaitFor)     \
  X(dispatch_totals, DispatchParameters, DispatchTotals)    \
  X(dispatch_tally, DispatchParameters, DispatchTally)      \
  X(dispatch_offsets, DispatchParameters, DispatchOffsets)  \
  X(dispatch_place, DispatchParameters, DispatchPlace)      \
  X(dispatch_pack, DispatchParameters, DispatchPack)        \
  X(combine_send, DispatchParameters, CombineSend)          \
  X(combine_reduce, DispatchParameters, CombineReduce)
