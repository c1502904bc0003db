// Fuzz target of the manifests of a flip: arbitrary bytes, or a sound world's manifests, damaged.
// They are rejected, or the plan is proven, fits the pages of its rank, and its requests satisfy
// the assumptions of a scheduler and its steps.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "agent/kv/cover.h"
#include "e2e/engine/transition/carry.h"

namespace tangram::engine {
namespace {

constexpr uint32_t kBlock = 4, kPages = 64, kLayers = 2;
constexpr kv::Shape kShape{4, 2, kBlock, 8};

void Want(bool holds, const std::string& what) {
  if (holds) return;
  std::cerr << "manifest_fuzz: " << what << std::endl;
  std::abort();
}

// `ranks` ranks; each layer has one group per rank, or one group of all.
Side MakeSide(uint32_t ranks, uint32_t shared_layers) {
  Side out;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    kv::LayerGroups& groups = out.groups.emplace_back();
    if ((shared_layers >> layer & 1) == 0) {
      for (uint32_t r = 0; r < ranks; ++r) groups.push_back({{r}, {0, kShape.query_heads}});
      continue;
    }
    kv::Group& group = groups.emplace_back();
    for (uint32_t r = 0; r <= ranks; ++r) {
      if (r < ranks) group.ranks.push_back(r);
      group.query_head_bounds.push_back(kShape.query_heads * r / ranks);
    }
  }
  for (uint32_t r = 0; r < ranks; ++r) out.members.push_back("m" + std::to_string(r));
  return out;
}

// Chains that begin like a request or another chain, or without a common prefix.
void Idle(FuzzedDataProvider& in, const HeldMap& held, uint32_t home, RankManifest* manifest,
          std::vector<PageStore>* pages) {
  uint32_t next = 100;
  for (uint32_t i = in.ConsumeIntegralInRange<uint32_t>(0, 3); i > 0; --i) {
    Chain chain;
    if (!manifest->idle.empty() && in.ConsumeBool()) {
      chain.blocks = {manifest->idle.back().blocks[0]};
    } else if (!manifest->running.empty() && manifest->running[0].computed >= kBlock) {
      chain.blocks = {manifest->running[0].blocks[0]};
    }
    for (uint32_t b = in.ConsumeIntegralInRange<uint32_t>(1, 3); b > 0; --b) {
      chain.blocks.push_back(next++);
    }
    for (const uint32_t block : chain.blocks) {
      for (uint32_t r = 0; r < pages->size(); ++r) {
        if (held.PagesPerBlock(home, r) > 0) (void)(*pages)[r].Ensure(home, block, held, r);
      }
    }
    chain.tokens.resize(chain.blocks.size() * kBlock);
    manifest->idle.push_back(std::move(chain));
  }
}

// Requests at every home, and their blocks' pages on all ranks that hold heads of them.
std::vector<RankManifest> Sound(FuzzedDataProvider& in, const Side& side,
                                const std::vector<bool>& layers) {
  std::vector<RankManifest> out(side.members.size());
  std::vector<PageStore> pages;
  for (size_t r = 0; r < out.size(); ++r) pages.emplace_back(kPages);
  const HeldMap held(side.groups, kShape, static_cast<uint32_t>(out.size()));
  for (uint32_t home = 0; home < out.size(); ++home) {
    uint32_t next = in.ConsumeIntegralInRange<uint32_t>(0, 3);
    for (uint32_t i = in.ConsumeIntegralInRange<uint32_t>(0, 3); i > 0; --i) {
      const bool runs = in.ConsumeBool();
      Sequence& sequence = (runs ? out[home].running : out[home].waiting).emplace_back();
      sequence.submit.set_request(std::to_string(home) + "/" + std::to_string(i));
      sequence.tokens.resize(in.ConsumeIntegralInRange<size_t>(1, 12));
      for (uint32_t token = 0; token < sequence.tokens.size(); ++token) {
        sequence.tokens[token] = token;
        if (token == 0 || in.ConsumeBool()) sequence.submit.add_prompt(token);
      }
      sequence.submit.set_max_tokens(in.ConsumeIntegralInRange<uint32_t>(12, 20));
      if (!runs) continue;
      sequence.computed =
          in.ConsumeIntegralInRange<uint32_t>(0, static_cast<uint32_t>(sequence.tokens.size()) - 1);
      while (sequence.blocks.size() * kBlock < sequence.computed) {
        sequence.blocks.push_back(next++);
        for (uint32_t r = 0; r < out.size(); ++r) {
          if (held.PagesPerBlock(home, r) == 0) continue;
          (void)pages[r].Ensure(home, sequence.blocks.back(), held, r);
        }
      }
    }
  }
  for (uint32_t home = 0; home < out.size(); ++home) Idle(in, held, home, &out[home], &pages);
  for (size_t r = 0; r < out.size(); ++r) out[r].pages = pages[r].State(layers);
  return out;
}

uint32_t Number(FuzzedDataProvider& in) {
  return in.ConsumeBool() ? in.ConsumeIntegralInRange<uint32_t>(0, kPages)
                          : in.PickValueInArray<uint32_t>({~0u, ~0u - 1, ~0u - kBlock, 1u << 31,
                                                           in.ConsumeIntegral<uint32_t>()});
}

template <typename T>
T* One(FuzzedDataProvider& in, std::vector<T>* of) {
  return of->empty() ? nullptr : &(*of)[in.ConsumeIntegralInRange<size_t>(0, of->size() - 1)];
}

void Damage(FuzzedDataProvider& in, RankManifest* manifest) {
  Sequence* sequence = One(in, in.ConsumeBool() ? &manifest->running : &manifest->waiting);
  kv::Strip* strip = One(in, &manifest->pages.strips);
  switch (in.ConsumeIntegralInRange(0, 13)) {
    case 0:
      if (sequence != nullptr) sequence->computed = Number(in);
      return;
    case 1:
      if (sequence != nullptr) sequence->submit.set_max_tokens(Number(in));
      return;
    case 2:
      if (sequence != nullptr) sequence->tokens.resize(Number(in) % 64);
      return;
    case 3:
      if (sequence != nullptr) sequence->submit.set_request("0/1");
      return;
    case 4:
      if (sequence != nullptr) sequence->blocks.push_back(Number(in));
      return;
    case 5:
      if (sequence != nullptr && !sequence->blocks.empty()) sequence->blocks[0] = Number(in);
      return;
    case 13:
      if (Chain* chain = One(in, &manifest->idle)) chain->blocks[0] = Number(in);
      return;
    case 6:
      manifest->pages.free_pages = Number(in);
      return;
    case 7:
      manifest->pages.total_pages = Number(in);
      return;
    case 8:
      if (strip != nullptr) strip->home = Number(in);
      return;
    case 9:
      if (strip != nullptr) strip->block = Number(in);
      return;
    case 10:
      if (strip != nullptr) strip->layers = Number(in);
      return;
    case 11:
      if (strip != nullptr) (in.ConsumeBool() ? strip->layer : strip->kv_head) = Number(in);
      return;
    default:
      if (strip != nullptr) (in.ConsumeBool() ? strip->page : strip->stride) = Number(in);
  }
}

// One rank's result: the plan is rejected, or proven, and fits the rank's pages.
void Part(const Carrying& carrying, const Side& from, const Side& to, uint32_t rank) {
  const Result<kv::RankPlan> part = kv::ProvenPart(carrying.input, carrying.plan, rank);
  if (!part.ok()) {
    Want(part.status().code() == Code::kInvalid, part.status().message());
    return;
  }
  uint64_t pages = 0;
  for (const kv::Keep& k : part->kept) pages += k.layers;
  for (const kv::Move& m : part->moves) pages += m.layers;
  const auto old = std::find(from.members.begin(), from.members.end(), to.members[rank]);
  const uint64_t room =
      old == from.members.end() ? 0 : carrying.input.ranks[old - from.members.begin()].total_pages;
  Want(pages <= room, "more pages than the rank has");
}

void Plan(const Side& from, const Side& to, bool whole, std::vector<RankManifest> manifests) {
  const Result<Carrying> carrying = PlanCarry(kShape, from, to, whole, &manifests);
  if (!carrying.ok()) {
    const Code code = carrying.status().code();
    Want(code == Code::kInvalid || code == Code::kNoMemory || (code == Code::kNotHeld && !whole),
         carrying.status().message());
    return;
  }
  for (uint32_t rank = 0; rank < to.members.size(); ++rank) Part(*carrying, from, to, rank);
  size_t requests = 0;
  for (const RankManifest& manifest : manifests) {
    requests += manifest.running.size() + manifest.waiting.size();
  }
  for (uint32_t rank = 0; rank < to.members.size(); ++rank) {
    const Adopted adopted = AdoptOf(*carrying, manifests, rank);
    requests -= adopted.running.size() + adopted.waiting.size();
    for (const Sequence& sequence : adopted.running) {
      Want(sequence.computed < sequence.tokens.size(), "a position that is not known");
      Want(sequence.blocks.size() == (sequence.computed + kBlock - 1) / kBlock, "blocks");
      Want(sequence.reserved_tokens() > sequence.tokens.size(), "tokens beyond the reservation");
      for (const uint32_t block : sequence.blocks) {
        Want(block < carrying->plan.next_block[rank], "a block that would be given again");
      }
    }
    for (const Chain& chain : adopted.idle) {
      Want(!chain.blocks.empty() && chain.tokens.size() == chain.blocks.size() * kBlock, "a chain");
      for (const uint32_t block : chain.blocks) {
        Want(block < carrying->plan.next_block[rank], "an idle block that would be given again");
      }
    }
    for (const Sequence& sequence : adopted.waiting) {
      Want(sequence.computed == 0 && sequence.blocks.empty(), "KV of a request that waits");
      Want(sequence.prompt_tokens() > 0, "no prompt");
    }
  }
  Want(requests == 0, "a request is lost or comes twice");
}

}  // namespace
}  // namespace tangram::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tangram::engine;
  FuzzedDataProvider in(data, size);
  if (in.ConsumeBool()) {
    const auto rest = in.ConsumeRemainingBytes<uint8_t>();
    const auto decoded = DecodeManifest(rest, kBlock);
    if (decoded.ok() && !DecodeManifest(EncodeManifest(*decoded), kBlock).ok()) std::abort();
    return 0;
  }
  const Side from =
      MakeSide(in.ConsumeIntegralInRange<uint32_t>(1, 3), in.ConsumeIntegral<uint8_t>());
  const Side to =
      MakeSide(in.ConsumeIntegralInRange<uint32_t>(1, 3), in.ConsumeIntegral<uint8_t>());
  const bool whole = in.ConsumeBool();
  std::vector<RankManifest> manifests = Sound(in, from, ListedLayers(from, to, whole));
  while (in.remaining_bytes() > 0) Damage(in, One(in, &manifests));
  // Decode as the receiving ranks do: they reject impossible manifests here.
  for (RankManifest& manifest : manifests) {
    auto read = DecodeManifest(EncodeManifest(manifest), kBlock);
    if (!read.ok()) return 0;
    manifest = std::move(*read);
  }
  Plan(from, to, whole, manifests);
  return 0;
}
