#include "e2e/engine/transition/manifest.h"

namespace tangram::engine {
namespace {

void Encode(const Sequence& sequence, ByteWriter* writer) {
  writer->PutString(sequence.submit.SerializeAsString());
  writer->PutString(sequence.gateway);
  writer->PutVector(sequence.tokens);
  writer->Put(sequence.computed);
  writer->PutVector(sequence.blocks);
  writer->Put(sequence.arrival);
}

bool Decode(ByteReader* reader, Sequence* sequence) {
  const bool parsed = sequence->submit.ParseFromString(reader->GetString());
  sequence->gateway = reader->GetString();
  sequence->tokens = reader->GetVector<uint32_t>();
  sequence->computed = reader->Get<uint32_t>();
  sequence->blocks = reader->GetVector<uint32_t>();
  sequence->arrival = reader->Get<uint64_t>();
  return parsed && reader->ok();
}

// Preconditions of the scheduler and the plan: a prompt, tokens within the reservation, and KV of
// known positions only; waiting requests have no KV.
bool IsSound(const Sequence& sequence, bool runs) {
  const uint64_t reserved = uint64_t{sequence.prompt_tokens()} + sequence.submit.max_tokens();
  return sequence.prompt_tokens() > 0 && sequence.tokens.size() >= sequence.prompt_tokens() &&
         sequence.tokens.size() < reserved && reserved <= UINT32_MAX &&
         (runs ? sequence.computed < sequence.tokens.size()
               : sequence.computed == 0 && sequence.blocks.empty());
}

bool Decode(ByteReader* reader, uint64_t count, bool runs, std::vector<Sequence>* out) {
  for (uint64_t i = 0; i < count; ++i) {
    Sequence& sequence = out->emplace_back();
    if (!Decode(reader, &sequence) || !IsSound(sequence, runs)) return false;
  }
  return true;
}

bool Decode(ByteReader* reader, uint32_t block_tokens, std::vector<Chain>* out) {
  for (uint64_t left = reader->Get<uint64_t>(); left > 0 && reader->ok(); --left) {
    Chain& chain = out->emplace_back();
    chain.blocks = reader->GetVector<uint32_t>();
    chain.tokens = reader->GetVector<uint32_t>();
    chain.salt = reader->GetString();
    if (chain.blocks.empty() || chain.tokens.size() != chain.blocks.size() * block_tokens) {
      return false;
    }
  }
  return reader->ok();
}

Bytes Encode(std::span<const Sequence* const> running, std::span<const Sequence* const> waiting,
             std::span<const Chain> idle, const kv::RankState& state,
             const std::vector<int32_t>& promised) {
  ByteWriter writer;
  writer.Put<uint64_t>(running.size());
  writer.Put<uint64_t>(waiting.size());
  for (const Sequence* sequence : running) Encode(*sequence, &writer);
  for (const Sequence* sequence : waiting) Encode(*sequence, &writer);
  writer.Put<uint64_t>(idle.size());
  for (const Chain& chain : idle) {
    writer.PutVector(chain.blocks);
    writer.PutVector(chain.tokens);
    writer.PutString(chain.salt);
  }
  writer.Put(state.total_pages);
  writer.Put(state.free_pages);
  writer.PutVector(state.strips);
  writer.PutVector(promised);
  return writer.Take();
}

}  // namespace

Bytes EncodeManifest(const Scheduler& scheduler, const PageStore& pages,
                     const std::vector<bool>& layers,
                     const std::function<int32_t(std::span<const uint32_t>)>& promised) {
  size_t running = 0;
  const std::vector<const Sequence*> all = scheduler.All(&running);
  const std::vector<Chain> idle = scheduler.IdleChains();
  std::vector<int32_t> homes;
  for (size_t i = 0; i < running; ++i) homes.push_back(promised(all[i]->blocks));
  for (const Chain& chain : idle) homes.push_back(promised(chain.blocks));
  return Encode(std::span(all).first(running), std::span(all).subspan(running), idle,
                pages.State(layers), homes);
}

Bytes EncodeManifest(const RankManifest& manifest) {
  std::vector<const Sequence*> running, waiting;
  for (const Sequence& sequence : manifest.running) running.push_back(&sequence);
  for (const Sequence& sequence : manifest.waiting) waiting.push_back(&sequence);
  return Encode(running, waiting, manifest.idle, manifest.pages, manifest.promised);
}

Result<RankManifest> DecodeManifest(const Bytes& bytes, uint32_t block_tokens) {
  ByteReader reader(bytes);
  RankManifest out;
  const uint64_t running = reader.Get<uint64_t>(), waiting = reader.Get<uint64_t>();
  const bool ok = Decode(&reader, running, true, &out.running) &&
                  Decode(&reader, waiting, false, &out.waiting) &&
                  Decode(&reader, block_tokens, &out.idle);
  out.pages.total_pages = reader.Get<uint32_t>();
  out.pages.free_pages = reader.Get<uint32_t>();
  out.pages.strips = reader.GetVector<kv::Strip>();
  out.promised = reader.GetVector<int32_t>();
  const bool each =
      out.promised.empty() || out.promised.size() == out.running.size() + out.idle.size();
  if (!ok || !each || !reader.done()) return Status{Code::kInternal, "malformed manifest"};
  return out;
}

}  // namespace tangram::engine
