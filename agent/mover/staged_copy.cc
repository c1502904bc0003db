#include "agent/mover/staged_copy.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "agent/device/device.h"

namespace tangram::mover {
namespace {

using Clock = std::chrono::steady_clock;

device::Shape ShapeOf(const StagedShape& shape, uint64_t units) {
  const uint64_t rows = shape.inner / shape.ranks * 2;  // in bytes of bf16
  return {{{1, rows * shape.hidden}, {1, rows * shape.hidden}, {shape.hidden, rows}}, units};
}

void Do(device::Device& device, const device::CopyOp& op) {
  if (!device.Copy({&op, 1}).Wait().ok()) std::abort();
}

}  // namespace

uint64_t ShardBytes(const StagedShape& shape, const device::Memory& from) {
  return from.bytes / shape.expert_bytes() * (shape.expert_bytes() / shape.ranks);
}

double StagedCopy(const StagedShape& shape, uint64_t rank, const device::Memory& from,
                  const device::Memory& to, uint64_t at_once, unsigned threads) {
  const device::Shape whole = ShapeOf(shape, shape.ranks), mine = ShapeOf(shape, 1);
  const uint64_t experts = from.bytes / shape.expert_bytes(), bytes = mine.unit_bytes();
  const uint64_t block = at_once == 0 ? experts : std::min(at_once, experts);
  // Both are touched before the clock starts.
  std::vector<std::byte> sent(block * bytes, std::byte{1}), received(block * bytes, std::byte{1});
  device::Device& device = *to.device;
  const auto part = [&](std::vector<std::byte>& buffer, uint64_t i) {
    return device::Memory::Own(std::span(buffer).subspan(i * bytes, bytes));
  };
  std::barrier all(threads);
  const auto work = [&](unsigned t) {
    for (uint64_t first = 0; first < experts; first += block) {
      const uint64_t count = std::min(block, experts - first);
      for (uint64_t i = t; i < count; i += threads) {
        device::Memory slab = from.Part((first + i) * shape.expert_bytes(), shape.expert_bytes());
        slab.shape = &whole;
        Do(device, {part(sent, i), slab.Part(rank * bytes, bytes)});
      }
      all.arrive_and_wait();  // an all-to-all begins when all is packed
      for (uint64_t i = t; i < count; i += threads) {
        uint64_t hash = 0;
        Do(device, {part(received, i), part(sent, i), &hash});
      }
      all.arrive_and_wait();
      for (uint64_t i = t; i < count; i += threads) {
        Do(device, {to.Part((first + i) * bytes, bytes), part(received, i)});
      }
      all.arrive_and_wait();
    }
  };
  const auto begin = Clock::now();
  {
    std::vector<std::jthread> workers;
    for (unsigned t = 0; t < threads; ++t) workers.emplace_back(work, t);
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace tangram::mover
