#include "tests/gpu/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/gpu/draw.h"

namespace tangram::gpu {
namespace {

constexpr float kEpsilon = 1e-6f, kTheta = 1e6f;

// {cos, sin} of position * theta^(-2i / dim).
std::vector<float> Turns(const DecoderShape& shape) {
  std::vector<float> out;
  for (uint64_t p = 0; p < shape.positions(); ++p) {
    for (uint64_t i = 0; i < shape.dim / 2; ++i) {
      const double power = -2.0 * static_cast<double>(i) / static_cast<double>(shape.dim);
      const double angle = static_cast<double>(p) * std::pow(kTheta, power);
      out.push_back(static_cast<float>(std::cos(angle)));
      out.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return out;
}

}  // namespace

Decoder::Decoder(const Gpu& gpu, const Kernels& kernels, const DecoderShape& shape, uint64_t seed)
    : gpu_(gpu), kernels_(kernels), shape_(shape), stream_(gpu) {
  const uint64_t b = shape.rows, h = shape.hidden, heads = shape.query_heads * shape.dim;
  const auto floats = [&](uint64_t count) { return std::make_unique<Buffer>(gpu, count * 4); };
  const auto weights = [&](uint64_t count, uint64_t number, float scale) {
    auto out = std::make_unique<Buffer>(gpu, count * 2);
    Launch("fill_bf16", count,
           kernels::FillParameters{out->address(), count, 0, seed + number, scale});
    return out;
  };
  embedding_ = weights(shape.vocabulary * h, 1, 1);
  head_ = weights(shape.vocabulary * h, 2, 0.05f);
  dense_ = weights(Layer(shape.layers).q / 2, 3, 0.05f);  // Layer counts from 0 until it is set
  gpu.Wait(stream_);
  turns_ = UploadList(gpu, Turns(shape));
  Draw draw(seed);
  Requests first{{}, std::vector<uint32_t>(b), std::vector<uint32_t>(b, 1), {}};
  first.history.resize(b * shape.positions());
  for (uint64_t r = 0; r < b; ++r) {
    first.tokens.push_back(static_cast<uint32_t>(draw.Below(shape.vocabulary)));
    first.history[r * shape.positions()] = first.tokens.back();
  }
  tokens_ = UploadList(gpu, first.tokens);
  positions_ = UploadList(gpu, first.positions);
  known_ = UploadList(gpu, first.known);
  history_ = UploadList(gpu, first.history);
  x_ = floats(b * h);
  n_ = floats(b * h);
  q_ = floats(b * heads);
  mixed_ = floats(b * heads);
  k_ = floats(b * shape.kv_heads * shape.dim);
  v_ = floats(b * shape.kv_heads * shape.dim);
  scores_ = floats(b * shape.query_heads * shape.positions());
  parts_ = floats(8 * b * h);
  logits_ = floats(b * shape.vocabulary);
  routed_ = floats(b * shape.experts);
  choices_ = std::make_unique<Buffer>(gpu, b * shape.top * sizeof(kernels::Choice));
  acts_ = floats(b * shape.top * shape.inner);
}

Decoder::~Decoder() {
  for (const auto& layout : layouts_) {
    (void)gpu_.more().GraphExecDestroy(layout->executable);
    (void)gpu_.more().GraphDestroy(layout->graph);
  }
}

template <typename Parameters>
void Decoder::Launch(const char* kernel, uint64_t results, const Parameters& parameters) const {
  kernels_.Launch(kernel, kernels::ItemsLaunch(results, 8 * AllBlocks(gpu_)), parameters, stream_);
}

Decoder::Dense Decoder::Layer(uint64_t layer) const {
  const uint64_t h = shape_.hidden * 2, q = shape_.query_heads * shape_.dim;
  const uint64_t kv = shape_.kv_heads * shape_.dim;
  const uint64_t bytes = (2 * q + 2 * kv + shape_.experts) * h;
  Dense out;
  out.q = (dense_ == nullptr ? 0 : dense_->address()) + layer * bytes;
  out.k = out.q + q * h;
  out.v = out.k + kv * h;
  out.o = out.v + kv * h;
  out.router = out.o + q * h;
  return out;
}

size_t Decoder::PageNumber(uint64_t layer, uint64_t row, uint64_t head, uint64_t block) const {
  return ((layer * shape_.rows + row) * shape_.kv_heads + head) * shape_.blocks + block;
}

void Decoder::MakePages(Layout* layout, int like) {
  const Mode& mode = layout->mode;
  layout->pages.resize(shape_.layers * shape_.rows * shape_.kv_heads * shape_.blocks);
  const auto has = [](const RankPart& part, uint64_t row) {
    return row >= part.row && row < part.row + part.rows;
  };
  for (uint64_t r = 0; r < mode.ranks(); ++r) {
    const RankPart& part = mode.of[r];
    std::vector<size_t> fresh;
    for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
      for (uint64_t row = part.row; row < part.row + part.rows; ++row) {
        for (uint64_t head = part.kv_head; head < part.kv_head + part.kv_heads; ++head) {
          for (uint64_t block = 0; block < shape_.blocks; ++block) {
            const size_t page = PageNumber(layer, row, head, block);
            if (like >= 0 && has(layouts_[static_cast<size_t>(like)]->mode.of[r], row)) {
              layout->pages[page] = layouts_[static_cast<size_t>(like)]->pages[page];
            } else {
              fresh.push_back(page);
            }
          }
        }
      }
    }
    layout->kv.push_back(
        std::make_unique<Buffer>(gpu_, std::max<uint64_t>(fresh.size(), 1) * shape_.page_bytes()));
    uint64_t at = layout->kv.back()->address();
    for (const size_t page : fresh)
      layout->pages[page] = std::exchange(at, at + shape_.page_bytes());
  }
  std::vector<uint64_t> tables;
  for (const RankPart& part : mode.of) {
    for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
      layout->table_at.push_back(tables.size() * 8);
      for (uint64_t row = part.row; row < part.row + part.rows; ++row) {
        const auto begin =
            layout->pages.begin() + static_cast<int64_t>(PageNumber(layer, row, part.kv_head, 0));
        tables.insert(tables.end(), begin,
                      begin + static_cast<int64_t>(part.kv_heads * shape_.blocks));
      }
    }
  }
  layout->page_tables = UploadList(gpu_, tables);
}

size_t Decoder::Capture(const Mode& mode, int like) {
  auto layout = std::make_unique<Layout>();
  layout->mode = mode;
  MakePages(layout.get(), like);
  layout->places =
      std::make_unique<Buffer>(gpu_, mode.ranks() * shape_.layers * shape_.experts * 8);
  const uint64_t free = gpu_.free_bytes();
  gpu_.Check(gpu_.more().StreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
             "beginning to capture");
  Put(*layout);
  gpu_.Check(gpu_.more().StreamEndCapture(stream_, &layout->graph), "ending to capture");
  gpu_.Check(gpu_.more().GraphInstantiateWithFlags(&layout->executable, layout->graph, 0),
             "making a graph");
  const uint64_t left = gpu_.free_bytes();  // may have grown if another process freed memory
  graph_bytes_ += free - std::min(left, free);
  layouts_.push_back(std::move(layout));
  return layouts_.size() - 1;
}

void Decoder::Place(size_t layout, const std::vector<uint64_t>& places) {
  Upload(gpu_, layouts_[layout]->places->address(), std::as_bytes(std::span(places)));
}

void Decoder::Step(size_t layout) {
  gpu_.Check(gpu_.more().GraphLaunch(layouts_[layout]->executable, stream_), "replaying a graph");
  gpu_.Wait(stream_);
}

void Decoder::Matvec(uint64_t to, uint64_t from, uint64_t weights, uint64_t rows, uint64_t outputs,
                     uint64_t columns, uint64_t weights_pitch) const {
  const uint64_t pitch = weights_pitch == 0 ? columns * 2 : weights_pitch;
  Launch("matvec", rows * outputs,
         kernels::MatvecParameters{to, outputs * 4, from, columns * 4, weights, pitch, rows,
                                   outputs, columns});
}

void Decoder::Attention(const Layout& layout, uint64_t layer) const {
  const Dense dense = Layer(layer);
  const uint64_t h = shape_.hidden, dim = shape_.dim;
  for (uint64_t r = 0; r < layout.mode.ranks(); ++r) {
    const RankPart& part = layout.mode.of[r];
    if (part.rows == 0) continue;
    const uint64_t n = n_->address() + part.row * h * 4;
    const uint64_t q = part.heads * dim, kv = part.kv_heads * dim;
    const uint64_t positions = positions_->address() + part.row * 4;
    Matvec(q_->address(), n, dense.q + part.head * dim * h * 2, part.rows, q, h);
    Matvec(k_->address(), n, dense.k + part.kv_head * dim * h * 2, part.rows, kv, h);
    Matvec(v_->address(), n, dense.v + part.kv_head * dim * h * 2, part.rows, kv, h);
    for (const auto& [heads_of, heads] :
         {std::pair(q_->address(), part.heads), std::pair(k_->address(), part.kv_heads)}) {
      Launch("rms_norm", part.rows * heads,
             kernels::RmsNormParameters{heads_of, heads_of, part.rows * heads, dim, kEpsilon});
      Launch(
          "rope", part.rows * heads * dim / 2,
          kernels::RopeParameters{heads_of, part.rows, heads, dim, positions, turns_->address()});
    }
    const uint64_t table =
        layout.page_tables->address() + layout.table_at[r * shape_.layers + layer];
    const kernels::PagesOf pages{table, part.kv_heads, shape_.blocks, shape_.block_tokens,
                                 dim,   positions};
    Launch("kv_write", part.rows * kv,
           kernels::KvWriteParameters{pages, k_->address(), v_->address(), part.rows});
    const kernels::AttendParameters attend{pages,
                                           q_->address(),
                                           part.rows,
                                           part.heads,
                                           part.heads / part.kv_heads,
                                           scores_->address(),
                                           shape_.positions(),
                                           mixed_->address(),
                                           q * 4,
                                           1 / std::sqrt(static_cast<float>(dim))};
    Launch("attend_scores", part.rows * part.heads * shape_.positions(), attend);
    Launch("attend_mix", part.rows * q, attend);
    Matvec(parts_->address() + (part.part * shape_.rows + part.row) * h * 4, mixed_->address(),
           dense.o + part.head * dim * 2, part.rows, h, q, shape_.query_heads * dim * 2);
  }
}

void Decoder::Experts(const Layout& layout, uint64_t layer) const {
  const uint64_t h = shape_.hidden;
  Matvec(routed_->address(), n_->address(), Layer(layer).router, shape_.rows, shape_.experts, h);
  Launch("route", shape_.rows,
         kernels::RouteParameters{choices_->address(), routed_->address(), shape_.rows,
                                  shape_.experts, shape_.top});
  for (uint64_t r = 0; r < layout.mode.ranks(); ++r) {
    const uint64_t places =
        layout.places->address() + (r * shape_.layers + layer) * shape_.experts * 8;
    const kernels::ExpertParameters experts{choices_->address(),
                                            shape_.rows,
                                            shape_.top,
                                            places,
                                            h,
                                            layout.mode.inner,
                                            n_->address(),
                                            acts_->address(),
                                            parts_->address() + r * shape_.rows * h * 4};
    Launch("expert_up", shape_.rows * shape_.top * layout.mode.inner, experts);
    Launch("expert_down", shape_.rows * h, experts);
  }
}

void Decoder::Put(const Layout& layout) const {
  const uint64_t h = shape_.hidden, all = shape_.rows * h;
  const auto norm = [&] {
    Launch("rms_norm", shape_.rows,
           kernels::RmsNormParameters{n_->address(), x_->address(), shape_.rows, h, kEpsilon});
  };
  const auto add = [&](uint64_t parts) {
    Launch("add_parts", all,
           kernels::AddPartsParameters{x_->address(), all, parts_->address(), parts, all * 4});
  };
  Launch("embed", all,
         kernels::EmbedParameters{x_->address(), shape_.rows, h, tokens_->address(),
                                  embedding_->address()});
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    norm();
    Attention(layout, layer);
    add(layout.mode.parts);
    norm();
    Experts(layout, layer);
    add(layout.mode.ranks());
  }
  norm();
  Matvec(logits_->address(), n_->address(), head_->address(), shape_.rows, shape_.vocabulary, h);
  Launch("pick_token", shape_.rows,
         kernels::PickParameters{logits_->address(), shape_.rows, shape_.vocabulary,
                                 tokens_->address(), positions_->address(), history_->address(),
                                 shape_.positions() * 4, known_->address()});
}

}  // namespace tangram::gpu
