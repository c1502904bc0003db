// Slots of a peer with arbitrary bytes: an exchange takes them as rows, drops them or masks the
// peer, and never reads out of bounds.
#include <cstring>
#include <deque>

#include "agent/dispatch/exchange.h"
#include "agent/dispatch/testing/layout.h"

using namespace tangram;
using namespace tangram::dispatch;

namespace {

// Receives slots from the fuzzer; drops slots sent to the peer.
class Hostile final : public Link {
 public:
  std::deque<std::vector<uint8_t>> slots[kLanes];
  bool here = true;

  std::span<uint8_t> Room(Lane, size_t want) override {
    room_.resize(want);
    return room_;
  }
  void Publish(Lane, size_t) override {}
  std::span<const uint8_t> Front(Lane lane) override {
    auto& of = slots[static_cast<size_t>(lane)];
    return of.empty() || !here ? std::span<const uint8_t>() : of.front();
  }
  void Pop(Lane lane) override { slots[static_cast<size_t>(lane)].pop_front(); }
  void Beat() override {}
  uint64_t Beats() override { return 0; }
  Status Work() override { return {Code::kUnavailable, "it ended"}; }
  void HangUp() override { here = false; }
  const char* path() const override { return "fuzz"; }

 private:
  std::vector<uint8_t> room_;
};

class Two final : public Links {
 public:
  Hostile peer;
  uint32_t ranks() const override { return 2; }
  uint32_t rank() const override { return 0; }
  Link* at(uint32_t rank) override { return rank == 1 ? &peer : nullptr; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const bool fp8 = (data[0] & 1) != 0, fixed = (data[0] & 2) != 0, by_rows = (data[0] & 4) != 0;
  const Format format{.hidden = 4,
                      .top_k = 2,
                      .experts = 3,
                      .x = Element::kF32,
                      .wire = fp8 ? Element::kFp8 : Element::kF32,
                      .sums = fixed || by_rows ? Element::kFixed : Element::kF32,
                      .most_tokens = (data[0] & 8) != 0 ? 0u : 9u};
  static const auto routes = [] {
    testing::Layout layout(2, 3);
    layout.AddLayer({{{{0, 0, 1}}}, {{{0, 0, 1}, {1, 1, 1}}}, {{{1, 0, 1}}, {{0, 0, 1}}}});
    return std::make_shared<const Routes>(Routes::Of(layout.Maps(0), layout.model()).value());
  }();
  Two links;
  // Slots: a byte for the lane, one for the length, then that many bytes. Heads are filled in,
  // because random ones would always be rejected.
  size_t at = 1;
  while (at + 2 <= size) {
    const auto lane = static_cast<Lane>(data[at] & 1);
    const bool honest = (data[at] & 2) != 0;
    const size_t bytes = std::min<size_t>(data[at + 1], size - at - 2);
    std::vector<uint8_t> slot(data + at + 2, data + at + 2 + bytes);
    if (honest && slot.size() >= 8) {
      SlotHead head;
      head.lane = static_cast<uint32_t>(lane);
      head.epoch = 1;
      head.pair = slot[0] % 3;
      head.total = slot[1] % 12;
      head.metas = slot[2] % 5;
      head.rows = slot[3] % 5;
      head.top_k = format.top_k;
      head.stride = static_cast<uint32_t>(format.stride(lane));
      const size_t meta = format.meta_bytes(lane);
      std::vector<uint8_t> whole(head.rows == 0
                                     ? sizeof head + head.metas * meta
                                     : RowsAt(head.metas, meta) + head.rows * head.stride);
      std::memcpy(whole.data(), &head, sizeof head);
      for (size_t i = sizeof head; i < whole.size(); ++i)
        whole[i] = slot[4 + i % (slot.size() - 4)] % 4 == 0 ? 0 : slot[4 + i % (slot.size() - 4)];
      slot = std::move(whole);
    }
    links.peer.slots[data[at] & 1].push_back(std::move(slot));
    at += 2 + bytes;
  }
  ExchangeOptions options{.timeout = std::chrono::seconds(1)};
  options.by_rows = by_rows;
  options.packed_capacity = by_rows ? 0 : 8;
  Exchange exchange(format, options);
  exchange.Enter(1, &links, routes);
  const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, weights[4] = {1, 1, 1, 1};
  const int32_t experts[4] = {0, 1, 2, 1};
  for (int pair = 0; pair < 2; ++pair) {
    const auto handle = exchange.Send(0, {2, x, experts, weights});
    if (!handle.ok() || !exchange.Receive(*handle).ok()) return 0;
    const size_t rows = by_rows ? exchange.arrived(*handle).rows : exchange.packed(*handle).rows;
    if (options.packed_capacity != 0 && rows > options.packed_capacity) std::abort();
    const std::vector<uint8_t> outputs(rows * 4 * 8 + 1, 0);
    if (!exchange.SendBack(*handle, outputs.data()).ok()) return 0;
    int64_t y[8];
    if (!exchange.Finish(*handle, y).ok()) return 0;
  }
  return 0;
}
