// The requests of a Decoder: their KV in other layouts and decoders, and their state.
#include <algorithm>

#include "tests/gpu/decoder.h"
#include "tests/gpu/kv_pages.h"

namespace tangram::gpu {
namespace {

template <typename T>
std::vector<T> ListOf(const Gpu& gpu, const Buffer& from, size_t count) {
  const auto bytes = Download(gpu, from.address(), count * sizeof(T));
  std::vector<T> out(count);
  std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(out)).begin());
  return out;
}

template <typename T>
void UploadTo(const Gpu& gpu, const Buffer& to, const std::vector<T>& list) {
  Upload(gpu, to.address(), std::as_bytes(std::span(list)));
}

}  // namespace

Decoder::Requests Decoder::Told() const {
  const size_t rows = shape_.rows;
  return {ListOf<uint32_t>(gpu_, *tokens_, rows), ListOf<uint32_t>(gpu_, *positions_, rows),
          ListOf<uint32_t>(gpu_, *known_, rows),
          ListOf<uint32_t>(gpu_, *history_, rows * shape_.positions())};
}

std::vector<std::byte> Decoder::Logits() const {
  return Download(gpu_, logits_->address(), shape_.rows * shape_.vocabulary * 4);
}

void Decoder::MoveKv(size_t from, size_t to, uint64_t end) {
  const auto positions = ListOf<uint32_t>(gpu_, *positions_, shape_.rows);
  const uint64_t row_bytes = shape_.dim * 4, part = shape_.block_tokens * row_bytes;
  std::vector<kernels::KvMove> moves;
  for (uint64_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint64_t row = 0; row < end; ++row) {
      for (uint64_t head = 0; head < shape_.kv_heads; ++head) {
        for (uint64_t first = 0; first < positions[row]; first += shape_.block_tokens) {
          const size_t page = PageNumber(layer, row, head, first / shape_.block_tokens);
          if (layouts_[to]->pages[page] == layouts_[from]->pages[page]) continue;
          moves.push_back({.to = layouts_[to]->pages[page],
                           .to_part_stride = part,
                           .to_token_stride = row_bytes,
                           .from = layouts_[from]->pages[page],
                           .from_part_stride = part,
                           .from_token_stride = row_bytes,
                           .pages = 1,
                           .parts = 2,
                           .tokens = std::min(shape_.block_tokens, positions[row] - first),
                           .row_bytes = row_bytes});
        }
      }
    }
  }
  if (moves.empty()) return;
  const MoveList list(gpu_, std::move(moves));
  list.Launch(kernels_, AllBlocks(gpu_), stream_);
  gpu_.Wait(stream_);
}

void Decoder::StartAgain(uint64_t row) {
  Requests now = Told();
  for (; row < shape_.rows; ++row) {
    now.positions[row] = 0;
    now.tokens[row] = now.history[row * shape_.positions()];
  }
  UploadTo(gpu_, *positions_, now.positions);
  UploadTo(gpu_, *tokens_, now.tokens);
}

std::vector<std::byte> Decoder::Kv(size_t layout) const {
  std::vector<std::byte> out;
  for (const uint64_t page : layouts_[layout]->pages) {
    const auto bytes = Download(gpu_, page, shape_.page_bytes());
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  return out;
}

void Decoder::Take(const Requests& requests, size_t layout, const std::vector<std::byte>& kv) {
  UploadTo(gpu_, *tokens_, requests.tokens);
  UploadTo(gpu_, *positions_, requests.positions);
  UploadTo(gpu_, *known_, requests.known);
  UploadTo(gpu_, *history_, requests.history);
  auto next = std::span(kv);
  for (const uint64_t page : layouts_[layout]->pages) {
    Upload(gpu_, page, next.first(shape_.page_bytes()));
    next = next.subspan(shape_.page_bytes());
  }
}

}  // namespace tangram::gpu
