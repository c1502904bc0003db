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

}  // namespace

Bytes EncodeManifest(const Scheduler& scheduler, const PageStore& pages) {
  ByteWriter writer;
  size_t running = 0;
  const std::vector<const Sequence*> all = scheduler.All(&running);
  writer.Put<uint64_t>(running);
  writer.Put<uint64_t>(all.size() - running);
  for (const Sequence* sequence : all) Encode(*sequence, &writer);
  const kv::RankState state = pages.State();
  writer.Put(state.total_pages);
  writer.Put(state.free_pages);
  writer.Put<uint64_t>(state.blocks.size());
  for (const kv::HeldBlock& block : state.blocks) {
    writer.Put(block.home);
    writer.Put(block.block);
    writer.PutVector(block.pages);
  }
  return writer.Take();
}

Result<RankManifest> DecodeManifest(const Bytes& bytes) {
  ByteReader reader(bytes);
  RankManifest out;
  const uint64_t running = reader.Get<uint64_t>(), waiting = reader.Get<uint64_t>();
  bool ok = true;
  for (uint64_t i = 0; ok && i < running; ++i) ok = Decode(&reader, &out.running.emplace_back());
  for (uint64_t i = 0; ok && i < waiting; ++i) ok = Decode(&reader, &out.waiting.emplace_back());
  out.pages.total_pages = reader.Get<uint32_t>();
  out.pages.free_pages = reader.Get<uint32_t>();
  const uint64_t blocks = reader.Get<uint64_t>();
  for (uint64_t i = 0; reader.ok() && i < blocks; ++i) {
    kv::HeldBlock& block = out.pages.blocks.emplace_back();
    block.home = reader.Get<uint32_t>();
    block.block = reader.Get<uint32_t>();
    block.pages = reader.GetVector<uint32_t>();
  }
  if (!ok || !reader.done()) return Status{Code::kInternal, "malformed manifest"};
  return out;
}

}  // namespace tangram::engine
