// tangram-rank-cost: cost of a rank with the largest number of pieces, without its bytes.
// DeepSeek-V3's 58 layers of 256 experts in Tensor mode over 8 ranks: 14,848 pieces of a few pages,
// with a checkpoint that is a sparse file with a header. Prepare, the commit under its lock, status
// reads and retire are ratios to a sort of one key per piece; the heap is compared with an empty
// rank. One JSON object per flip, then the summary.
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "agent/loader/testing/writer.h"
#include "agent/store/rank_store.h"

namespace tangram::store {
namespace {

using layout::PlacedPiece;

constexpr uint32_t kRanks = 8, kRounds = 3;

double Milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "tangram-rank-cost: %s\n", status.message().c_str());
  std::exit(1);
}

// A complete checkpoint by its header; all its bytes are zero, and none is on the disk.
void WriteHollow(const std::string& directory, const loader::testing::ModelShape& shape) {
  loader::testing::WriteFile(directory + "/config.json", loader::testing::ConfigJson(shape));
  nlohmann::json header;
  uint64_t next = 0;
  const auto add = [&](const std::string& name, uint64_t rows, uint64_t columns) {
    const uint64_t bytes = rows * columns * loader::testing::ElementBytes(shape.dtype);
    header[name] = {
        {"dtype", shape.dtype}, {"shape", {rows, columns}}, {"data_offsets", {next, next + bytes}}};
    next += bytes;
  };
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t expert = 0; expert < shape.experts; ++expert) {
      const std::string prefix = fmt::format("model.layers.{}.mlp.experts.{}.", layer, expert);
      add(prefix + "gate_proj.weight", shape.moe_inner, shape.hidden);
      add(prefix + "up_proj.weight", shape.moe_inner, shape.hidden);
      add(prefix + "down_proj.weight", shape.hidden, shape.moe_inner);
    }
  }
  const std::string front = loader::testing::SerializeRaw(header.dump(), "");
  const std::string path = directory + "/model.safetensors";
  loader::testing::WriteFile(path, front);
  if (truncate(path.c_str(), static_cast<off_t>(front.size() + next)) != 0) std::exit(1);
}

// Every expert over all ranks; the first `moved` layers use the spare banks.
v1::Layout Tensor(const layout::GeometryView& geometry, uint64_t epoch, uint32_t moved) {
  v1::Layout out;
  out.set_world("cost");
  out.set_epoch(epoch);
  out.set_geometry_fingerprint(geometry.fingerprint());
  out.set_banks(2 * geometry.moe_layers());
  for (uint32_t r = 0; r < kRanks; ++r) out.add_members()->set_id(fmt::format("m-{}/0/1", r));
  out.mutable_dense()->add_ranks(kRanks - 1);
  for (uint32_t l = 0; l < geometry.proto().layers(); ++l) {
    v1::LayerLayout& layer = *out.add_layers();
    layer.set_layer(l);
    layer.set_bank_offset(l < moved ? static_cast<int32_t>(geometry.moe_layers()) : 0);
    layer.set_expert_group_size(kRanks);
    v1::ExpertGroup& group = *layer.add_experts();
    for (uint32_t r = 0; r < kRanks; ++r) group.add_ranks(r);
    for (uint32_t e = 0; e < geometry.experts(); ++e) group.add_slots(e + 1);
    layer.set_attention_group_size(1);
    for (uint32_t r = 0; r < kRanks; ++r) {
      v1::AttentionGroup& attention = *layer.add_attention();
      attention.add_ranks(r);
      attention.add_query_head_bounds(0);
      attention.add_query_head_bounds(geometry.proto().query_heads());
    }
  }
  return out;
}

// Rank 0's part from one layout to the next. Pieces of the first layout are read, pieces whose bank
// changes are copied.
v1::RankPart PartOf(const layout::GeometryView& geometry, const v1::Layout* from,
                    const v1::Layout& to) {
  v1::RankPart part;
  std::vector<PlacedPiece> both;
  if (from != nullptr) both = layout::PiecesOf(*from, geometry, 0);
  const std::vector<PlacedPiece> after = layout::PiecesOf(to, geometry, 0);
  const size_t held = both.size();
  for (size_t i = 0; i < after.size(); ++i) {
    const PlacedPiece& piece = after[i];
    if (i < held && both[i] == piece) continue;
    const auto add = [&](auto* columns) {
      columns->add_layer(piece.layer);
      columns->add_expert(piece.expert);
      columns->add_granule_start(piece.run.start);
      columns->add_granule_count(piece.run.count);
    };
    if (from == nullptr) {
      add(part.mutable_fetches());
      part.mutable_fetches()->add_source(0);
    } else {
      add(part.mutable_copies());
    }
    both.push_back(piece);
  }
  const uint64_t page = geometry.page_bytes();
  part.set_peak_bytes(layout::PagesTouched(both, geometry) * page);
  part.set_steady_bytes(layout::PagesTouched(after, geometry) * page);
  return part;
}

// Currently allocated bytes, without the arenas, which are shared memory.
uint64_t Heap() { return mallinfo2().uordblks; }

struct Figures {
  double prepare = 0, commit = 0, status = 0, retire = 0;
};

// One flip of rank 0, in milliseconds.
Figures Flip(RankStore* store, const layout::GeometryView& geometry, const v1::Layout* from,
             const v1::Layout& to) {
  const v1::RankPart part = PartOf(geometry, from, to);
  Figures out;
  out.prepare = Milliseconds([&] { Must(store->Prepare(to.epoch(), to, 0, part)); });
  StageProgress progress;
  v1::Header header;
  header.set_attempt(to.epoch());
  Must(store->Stage(header, {}, &progress, {}));
  out.status = Milliseconds([&] { (void)store->Memory(); });
  out.commit = Milliseconds([&] { Must(store->Commit()); });
  out.retire = Milliseconds([&] { Must(store->Retire()); });
  return out;
}

int Main() {
  const loader::testing::TempDir directory;
  loader::testing::ModelShape shape;
  shape.layers = 58;
  shape.experts = 256;
  shape.top_k = 8;
  shape.hidden = 128;
  shape.moe_inner = 128;  // 16 granules of 8 rows
  WriteHollow(directory.path(), shape);
  auto checkpoint = loader::Checkpoint::Open(directory.path(), 8, 4096);
  Must(checkpoint.status());
  const layout::GeometryView& geometry = (*checkpoint)->geometry();

  mover::Grants grants;
  RankStore::Options options;
  options.member = "m-0/0/1";
  options.checkpoint = *checkpoint;
  auto platform = device::MakePlatform({});
  Must(platform.status());
  options.platform = std::move(platform).value();
  options.revision = "r1";
  options.banks = 2 * geometry.moe_layers();
  options.pool_bytes = uint64_t{512} << 20;
  options.kv_bytes = options.control_bytes = 1 << 20;
  options.grants = &grants;
  options.sibling = [](const std::string&) { return nullptr; };
  auto store = RankStore::Create(options);
  Must(store.status());
  const uint64_t empty = Heap();

  v1::Layout now = Tensor(geometry, 1, 0);
  const size_t pieces = layout::PiecesOf(now, geometry, 0).size();
  std::mt19937_64 random(1);
  std::vector<double> sorts;
  for (uint32_t i = 0; i < 2 * kRounds; ++i) {
    std::vector<uint64_t> keys(pieces);
    for (uint64_t& key : keys) key = random();
    sorts.push_back(Milliseconds([&] { std::sort(keys.begin(), keys.end()); }));
  }
  const double sort = Median(sorts);

  const auto told = [&](const char* what, const std::vector<Figures>& all) {
    const auto median = [&](double Figures::*figure) {
      std::vector<double> values;
      for (const Figures& f : all) values.push_back(f.*figure);
      return Median(values);
    };
    const nlohmann::json line = {{"flip", what},
                                 {"pieces", pieces},
                                 {"sort_ms", sort},
                                 {"prepare_ms", median(&Figures::prepare)},
                                 {"commit_ms", median(&Figures::commit)},
                                 {"status_ms", median(&Figures::status)},
                                 {"retire_ms", median(&Figures::retire)}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    return line;
  };
  (void)told("first", {Flip(store->get(), geometry, nullptr, now)});
  const uint64_t full = Heap();
  nlohmann::json worst;  // the last flip's figures, with the longest commit of all
  double commit = 0;
  for (const auto& [what, layers] :
       {std::pair{"one layer", 1U}, std::pair{"every layer", shape.layers}}) {
    std::vector<Figures> all;
    for (uint32_t round = 0; round < 2 * kRounds; ++round) {
      const v1::Layout next = Tensor(geometry, now.epoch() + 1, round % 2 == 0 ? layers : 0);
      all.push_back(Flip(store->get(), geometry, &now, next));
      now = next;
    }
    worst = told(what, all);
    commit = std::max(commit, worst["commit_ms"].get<double>());
  }
  const nlohmann::json summary = {{"bench", "rank-cost"},
                                  {"value", commit},
                                  {"unit", "ms of a commit under its lock"},
                                  {"metrics",
                                   {{"commit_ms", commit},
                                    {"commit_over_sort", commit / sort},
                                    {"prepare_over_sort", worst["prepare_ms"].get<double>() / sort},
                                    {"retire_over_sort", worst["retire_ms"].get<double>() / sort},
                                    {"status_ms", worst["status_ms"]},
                                    {"heap_mib", static_cast<double>(full - empty) / (1 << 20)},
                                    {"pieces", pieces}}}};
  std::printf("%s\n", summary.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tangram::store

int main() { return tangram::store::Main(); }
