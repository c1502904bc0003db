#include "agent/dispatch/gpu/device_buffer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/dispatch_layout.h"

namespace tangram::dispatch {
namespace {

using kernels::DispatchPeer;
using kernels::DispatchTable;

static_assert(static_cast<uint32_t>(Element::kF32) == kernels::kRowF32 &&
              static_cast<uint32_t>(Element::kBf16) == kernels::kRowBf16 &&
              static_cast<uint32_t>(Element::kFp8) == kernels::kRowFp8 &&
              static_cast<uint32_t>(Element::kFixed) == kernels::kRowFixed);

Status Invalid(const std::string& what) { return {Code::kInvalid, what}; }

uint64_t CapacityOf(const DeviceOptions& options) {
  if (options.packed_capacity != 0) return options.packed_capacity;
  return uint64_t{options.most_ranks} * options.format.most_tokens *
         std::min(options.format.top_k, options.most_locals);
}

kernels::DispatchParameters ShapeOf(const DeviceOptions& options) {
  const Format& format = options.format;
  kernels::DispatchParameters p;
  p.hidden = format.hidden;
  p.top_k = format.top_k;
  p.experts = format.experts;
  p.most_tokens = format.most_tokens;
  p.x = static_cast<uint32_t>(format.x);
  p.wire = static_cast<uint32_t>(format.wire);
  p.outputs = static_cast<uint32_t>(format.outputs());
  p.sums = static_cast<uint32_t>(format.sums);
  p.most_locals = options.most_locals;
  p.capacity = CapacityOf(options);
  p.timeout = static_cast<uint64_t>(options.timeout.count());
  return p;
}

// Layout of a member's own memory, one part after another.
struct Own {
  uint64_t table = 0, turns = 0, scratch[2] = {}, outputs[2] = {}, bytes = 0;
};
Own OwnOf(const DeviceOptions& options) {
  kernels::DispatchParameters p = ShapeOf(options);
  Own own;
  const auto take = [&](uint64_t bytes) {
    const uint64_t at = own.bytes;
    own.bytes += (bytes + 127) / 128 * 128;
    return at;
  };
  own.table = take(sizeof(DispatchTable));
  own.turns = take(uint64_t{options.moe_layers} * options.format.experts * sizeof(uint32_t));
  for (uint32_t half = 0; half < 2; ++half) {
    own.scratch[half] = take(kernels::PutScratch(0, &p));
    own.outputs[half] =
        take(p.capacity * RowBytes(options.format.outputs(), options.format.hidden));
  }
  return own;
}

const char* WordsOf(uint32_t cause) {
  switch (cause) {
    case kernels::kSilent:
      return "nothing came from it for ";
    case kernels::kStuck:
      return "it waits for somebody for ";
    case kernels::kMalformed:
      return "it says that it sent more rows than a dispatch may have";
    default:
      return "";
  }
}

}  // namespace

Status DeviceOptions::Check() const {
  TANGRAM_RETURN_IF_ERROR(format.Check());
  const auto number = [](uint64_t n) { return std::to_string(n); };
  if (format.most_tokens == 0)
    return Invalid("format of rows: most_tokens is 0: memory has no bound then");
  if (uint64_t{format.most_tokens} * format.hidden > UINT32_MAX)
    return Invalid("format of rows: " + number(format.most_tokens) + " rows of " +
                   number(format.hidden) + " numbers: kernels count them in 32 bits");
  if (most_ranks == 0 || most_ranks > kernels::kMostPeers)
    return Invalid("most_ranks is " + number(most_ranks) + ": 1 to " + number(kernels::kMostPeers));
  if (most_locals == 0) return Invalid("most_locals is 0: no rank could have an expert");
  if (moe_layers == 0) return Invalid("moe_layers is 0");
  return OkStatus();
}

uint64_t DeviceBuffer::GetBufferSizeHint(const DeviceOptions& options, bool wires) {
  const uint64_t boxes = options.most_ranks + (wires ? options.most_ranks - 1 : 0);
  return OwnOf(options).bytes + boxes * kernels::InboxBytes(ShapeOf(options));
}

DeviceBuffer::LaneRange DeviceBuffer::RangeOf(const kernels::DispatchParameters& p, uint32_t lane) {
  const kernels::DispatchInbox& inbox = p.inbox;
  const uint64_t end = inbox.rows[lane] + p.most_tokens * inbox.stride[lane];
  return {inbox.flags[lane], end - inbox.flags[lane]};
}

uint64_t DeviceBuffer::WireBytes(const DeviceOptions& options) {
  kernels::DispatchParameters p = ShapeOf(options);
  p.inbox = kernels::InboxOf(p, 0);
  return std::max(RangeOf(p, 0).bytes, RangeOf(p, 1).bytes);
}

Result<std::unique_ptr<DeviceBuffer>> DeviceBuffer::Create(MemberId self,
                                                           const DeviceOptions& options,
                                                           device::Device& memory,
                                                           device::Queue& queue) {
  TANGRAM_RETURN_IF_ERROR(options.Check());
  std::unique_ptr<DeviceBuffer> out(new DeviceBuffer(std::move(self), options, memory));
  TANGRAM_RETURN_IF_ERROR(out->Place(queue));
  return out;
}

Status DeviceBuffer::Place(device::Queue& queue) {
  const Own own = OwnOf(options_);
  auto made = DeviceMemory::Make(memory_, own.bytes);
  if (!made.ok()) return made.status();
  own_ = std::move(made).value();
  table_ = own_.at() + own.table;
  TANGRAM_RETURN_IF_ERROR(Clear(queue, table_, own.scratch[0] - own.table));
  for (uint32_t half = 0; half < 2; ++half) {
    kernels::DispatchParameters& p = pairs_[half].parameters = ShapeOf(options_);
    p.inbox = kernels::InboxOf(p, half);
    p.table = table_;
    p.turns = own_.at() + own.turns;
    (void)kernels::PutScratch(own_.at() + own.scratch[half], &p);
    TANGRAM_RETURN_IF_ERROR(Clear(queue, p.pair, p.choices - p.pair));
    pairs_[half].outputs = own_.at() + own.outputs[half];
  }
  return OkStatus();
}

Result<DeviceBuffer::Peer*> DeviceBuffer::PeerOf(const MemberId& id, device::Queue& queue) {
  Peer& peer = peers_[id];
  if (peer.inbox.at() != 0) return &peer;
  const kernels::DispatchParameters& p = pairs_[0].parameters;
  auto made = DeviceMemory::Make(memory_, kernels::InboxBytes(p));
  if (!made.ok()) return made.status();
  peer.inbox = std::move(made).value();
  // Flags of an earlier owner must not count. Rows need no clearing: they are read only after their
  // flags.
  TANGRAM_RETURN_IF_ERROR(Clear(queue, peer.inbox.at(), sizeof(uint64_t)));
  for (const Pair& pair : pairs_) {
    const kernels::DispatchInbox& inbox = pair.parameters.inbox;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
      TANGRAM_RETURN_IF_ERROR(
          Clear(queue, peer.inbox.at() + inbox.flags[lane], inbox.rows[lane] - inbox.flags[lane]));
  }
  return &peer;
}

Result<uint64_t> DeviceBuffer::Grant(const MemberId& to, device::Queue& queue) {
  const auto peer = PeerOf(to, queue);
  if (!peer.ok()) return peer.status();
  return (*peer)->inbox.at();
}

Result<device::Export> DeviceBuffer::ExportTo(const MemberId& to, device::Queue& queue) {
  const auto peer = PeerOf(to, queue);
  if (!peer.ok()) return peer.status();
  return memory_.ExportOf((*peer)->inbox.block());
}

Status DeviceBuffer::Attach(const MemberId& to, uint64_t inbox) {
  peers_[to].out = inbox;
  return OkStatus();
}

Status DeviceBuffer::Attach(const MemberId& to, device::Device& importer,
                            const device::Export& inbox) {
  auto imported = DeviceMemory::Import(importer, inbox);
  if (!imported.ok()) return imported.status();
  Peer& peer = peers_[to];
  peer.imported = std::move(imported).value();
  peer.out = peer.imported.at();
  return OkStatus();
}

Status DeviceBuffer::Attach(const MemberId& to, LaneWires wires) {
  const uint64_t bytes = WireBytes(options_);
  for (const auto& wire : wires.lanes)
    if (wire->Buffer(0).bytes < bytes)
      return Invalid("wires with buffers of " + std::to_string(wire->Buffer(0).bytes) +
                     " bytes; a message has " + std::to_string(bytes));
  Peer& peer = peers_[to];
  auto made = DeviceMemory::Make(memory_, kernels::InboxBytes(pairs_[0].parameters));
  if (!made.ok()) return made.status();
  peer.outbox = std::move(made).value();
  peer.out = peer.outbox.at();
  peer.wires = std::move(wires);
  return OkStatus();
}

void DeviceBuffer::Ended(const MemberId& id) {
  if (std::ranges::find(members_, id) == members_.end()) peers_.erase(id);
}

uint64_t DeviceBuffer::quarantined() const {
  uint64_t bytes = 0;
  for (const auto& [id, peer] : peers_)
    if (std::ranges::find(members_, id) == members_.end()) bytes += peer.inbox.bytes();
  return bytes;
}

// The lists of the layout follow the layers that refer to them.
Status DeviceBuffer::PutRoutes(device::Queue& queue) {
  const uint32_t layers = routes_ ? routes_->moe_layers() : 0;
  if (layers > options_.moe_layers)
    return Invalid("a layout of " + std::to_string(layers) +
                   " layers of experts; there is room for " + std::to_string(options_.moe_layers));
  std::vector<kernels::DispatchLayer> heads(layers);
  std::vector<uint32_t> words;
  const auto put = [&](std::span<const uint32_t> list) {
    const uint64_t at = words.size() * sizeof(uint32_t);
    words.insert(words.end(), list.begin(), list.end());
    return at;
  };
  for (uint32_t l = 0; l < layers; ++l) {
    const LayerRoutes layer = routes_->Layer(l);
    kernels::DispatchLayer& head = heads[l];
    std::vector<uint32_t> local(layer.choices(), UINT32_MAX);
    for (uint32_t c = 0; c < layer.choices(); ++c)
      if (!layer.PiecesOf(c).empty()) local[c] = head.locals++;
    if (head.locals > options_.most_locals)
      return Invalid("layer " + std::to_string(l) + " of experts has " +
                     std::to_string(head.locals) + " choices here; there is room for " +
                     std::to_string(options_.most_locals));
    head.choices = layer.choices();
    head.first = put(layer.first);
    head.ranks_begin = put(layer.ranks_begin);
    head.ranks = put(layer.ranks);
    head.own = put(layer.own);
    head.local = put(local);
  }
  const uint64_t heads_bytes = heads.size() * sizeof(heads[0]),
                 bytes = heads_bytes + words.size() * 4;
  if (bytes > routes_memory_.bytes()) {
    routes_memory_ = {};  // frees the old memory first
    auto made = DeviceMemory::Make(memory_, bytes);
    if (!made.ok()) return made.status();
    routes_memory_ = std::move(made).value();
  }
  for (kernels::DispatchLayer& head : heads)
    for (uint64_t* list : {&head.first, &head.ranks_begin, &head.ranks, &head.own, &head.local})
      *list += routes_memory_.at() + heads_bytes;
  if (bytes == 0) return OkStatus();
  TANGRAM_RETURN_IF_ERROR(Upload(queue, routes_memory_.at(), heads.data(), heads_bytes));
  return Upload(queue, routes_memory_.at() + heads_bytes, words.data(), words.size() * 4);
}

Status DeviceBuffer::UpdateMembers(uint64_t epoch, std::span<const MemberId> members,
                                   std::shared_ptr<const Routes> routes, device::Queue& queue) {
  if (!members_.empty() && epoch <= epoch_)
    return {Code::kStaleEpoch,
            "epoch " + std::to_string(epoch) + " after " + std::to_string(epoch_)};
  if (members.size() > options_.most_ranks)
    return Invalid("a world of " + std::to_string(members.size()) + " ranks; there is room for " +
                   std::to_string(options_.most_ranks));
  const auto mine = std::ranges::find(members, self_);
  if (mine == members.end()) return Invalid(NameOf(self_) + " is no member of this world");
  // Work on the queue still reads the old table.
  TANGRAM_RETURN_IF_ERROR(queue.Wait());
  routes_ = std::move(routes);
  TANGRAM_RETURN_IF_ERROR(PutRoutes(queue));
  rank_ = static_cast<uint32_t>(mine - members.begin());
  DispatchTable table;
  table.epoch = epoch;
  table.layers = routes_memory_.at();
  table.ranks = static_cast<uint32_t>(members.size());
  table.self = rank_;
  active_.assign(members.size(), 1);
  causes_.assign(members.size(), "");
  for (uint32_t r = 0; r < members.size(); ++r) {
    const auto peer = PeerOf(members[r], queue);
    if (!peer.ok()) return peer.status();
    DispatchPeer& to = table.peers[r];
    to.in = (*peer)->inbox.at();
    to.out = r == rank_ ? to.in : (*peer)->out;
    if (to.out != 0 && !(*peer)->gone) continue;
    to.masked = kernels::kTold;
    active_[r] = 0;
    causes_[r] = "there is no way to it";
  }
  TANGRAM_RETURN_IF_ERROR(Upload(queue, table_, &table, sizeof table));
  members_.assign(members.begin(), members.end());
  epoch_ = epoch;
  next_ = 0;
  for (Pair& pair : pairs_) {
    pair.stage = Stage::kFree;
    pair.under_way = {};
  }
  return OkStatus();
}

Result<DeviceBuffer::Pair*> DeviceBuffer::At(const Handle& handle, Stage stage, const char* doing) {
  Pair& pair = pairs_[handle.pair % 2];
  const auto bad = [&](const std::string& what) {
    return Invalid(std::string(doing) + " of pair " + std::to_string(handle.pair) + " of epoch " +
                   std::to_string(handle.epoch) + ": " + what);
  };
  if (handle.epoch != epoch_) return bad("the epoch is " + std::to_string(epoch_) + " by now");
  if (pair.stage == Stage::kFree || pair.number != handle.pair)
    return bad("it is over: a handle is for one dispatch and its combine");
  if (pair.stage != stage)
    return bad(pair.stage < stage ? "its dispatch is not through yet" : "it is past that");
  return &pair;
}

Status DeviceBuffer::Launch(std::initializer_list<const char*> names, Pair& pair,
                            device::Queue& queue) {
  for (const char* const name : names)
    TANGRAM_RETURN_IF_ERROR(
        queue.Launch(name, kernels::DispatchLaunch(name, pair.parameters, options_.most_blocks),
                     &pair.parameters));
  return OkStatus();
}

Result<Handle> DeviceBuffer::Send(uint32_t moe_ordinal, const DeviceRows& rows,
                                  device::Queue& queue) {
  if (!routes_ || moe_ordinal >= routes_->moe_layers())
    return Invalid("no active layout has layer " + std::to_string(moe_ordinal) + " of experts");
  if (rows.count > options_.format.most_tokens)
    return Invalid(std::to_string(rows.count) + " rows in one dispatch, and the most are " +
                   std::to_string(options_.format.most_tokens));
  Pair& pair = pairs_[next_ % 2];
  if (pair.stage != Stage::kFree)
    return Invalid("two pairs are open: the combine of pair " + std::to_string(pair.number) +
                   " comes first");
  kernels::DispatchParameters& p = pair.parameters;
  p.layer = moe_ordinal;
  p.tokens = rows.count;
  p.rows = rows.x;
  p.ids = rows.experts;
  p.weights = rows.weights;
  p.lane = 0;
  TANGRAM_RETURN_IF_ERROR(Launch({"dispatch_count", "dispatch_choose", "dispatch_ranks",
                                  "dispatch_slots", "dispatch_send", "dispatch_flag"},
                                 pair, queue));
  pair.stage = Stage::kDispatching;
  pair.number = next_++;
  pair.epoch = epoch_;
  pair.finished = false;
  if (Wired()) TANGRAM_RETURN_IF_ERROR(PostWires(pair, 0, queue));
  return Handle{epoch_, pair.number};
}

Status DeviceBuffer::Receive(const Handle& handle, device::Queue& queue) {
  const auto at = At(handle, Stage::kDispatching, "Receive");
  if (!at.ok()) return at.status();
  TANGRAM_RETURN_IF_ERROR(AwaitWires(**at, 0, queue));
  TANGRAM_RETURN_IF_ERROR(Launch({"dispatch_wait", "dispatch_totals", "dispatch_tally",
                                  "dispatch_offsets", "dispatch_place", "dispatch_pack"},
                                 **at, queue));
  (*at)->stage = Stage::kArrived;
  return OkStatus();
}

SentRows DeviceBuffer::sent(const Handle& handle) const {
  const kernels::DispatchParameters& p = pairs_[handle.pair % 2].parameters;
  return {p.choices, p.sent, p.rows_to, p.routed};
}

DevicePacked DeviceBuffer::packed(const Handle& handle) const {
  const kernels::DispatchParameters& p = pairs_[handle.pair % 2].parameters;
  DevicePacked out{p.packed,
                   options_.format.wire == Element::kFp8 ? p.scales : 0,
                   p.local_counts,
                   p.local_offsets,
                   p.pair + offsetof(kernels::DispatchPair, kept),
                   p.capacity,
                   {}};
  const LayerRoutes layer = routes_->Layer(p.layer);
  for (uint32_t c = 0; c < layer.choices(); ++c)
    if (!layer.PiecesOf(c).empty()) out.choices.push_back(c);
  return out;
}

uint64_t DeviceBuffer::NextCombineBuffer(const Handle& handle) const {
  return pairs_[handle.pair % 2].outputs;
}

Status DeviceBuffer::SendBack(const Handle& handle, uint64_t outputs, device::Queue& queue) {
  const auto at = At(handle, Stage::kArrived, "Combine");
  if (!at.ok()) return at.status();
  const Pair& other = pairs_[(handle.pair + 1) % 2];
  if (other.number < handle.pair &&
      (other.stage == Stage::kDispatching || other.stage == Stage::kArrived))
    return Invalid("the combine of pair " + std::to_string(handle.pair) + " before that of pair " +
                   std::to_string(other.number));
  Pair& pair = **at;
  pair.parameters.given = outputs;
  pair.parameters.lane = 1;
  TANGRAM_RETURN_IF_ERROR(Launch({"combine_send", "dispatch_flag"}, pair, queue));
  pair.stage = Stage::kCombining;
  return Wired() ? PostWires(pair, 1, queue) : OkStatus();
}

Status DeviceBuffer::Finish(const Handle& handle, uint64_t y, device::Queue& queue) {
  const Pair& other = pairs_[(handle.pair + 1) % 2];
  if (other.stage == Stage::kCombining && other.number < handle.pair)
    return Invalid("Finish of pair " + std::to_string(handle.pair) + " before that of pair " +
                   std::to_string(other.number));
  const auto at = At(handle, Stage::kCombining, "Finish");
  if (!at.ok()) return at.status();
  Pair& pair = **at;
  TANGRAM_RETURN_IF_ERROR(AwaitWires(pair, 1, queue));
  pair.parameters.y = y;
  TANGRAM_RETURN_IF_ERROR(Launch({"dispatch_wait", "combine_reduce"}, pair, queue));
  pair.finished = true;
  pair.stage = Stage::kFree;
  return OkStatus();
}

Status DeviceBuffer::Refresh(device::Queue& queue) {
  DispatchTable table;
  TANGRAM_RETURN_IF_ERROR(Download(queue, table_, &table, sizeof table));
  for (uint32_t r = 0; r < active_.size(); ++r) {
    const uint32_t cause = table.peers[r].masked;
    if (cause == kernels::kNotMasked) continue;
    active_[r] = 0;
    if (!causes_[r].empty()) continue;
    causes_[r] = WordsOf(cause);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
    if (cause == kernels::kSilent) causes_[r] += std::to_string(ms) + " ms";
    if (cause == kernels::kStuck) causes_[r] += std::to_string(3 * ms) + " ms";
  }
  return OkStatus();
}

Status DeviceBuffer::Mask(uint32_t rank, std::string cause, device::Queue& queue) {
  if (active_[rank] == 0) return OkStatus();
  active_[rank] = 0;
  causes_[rank] = std::move(cause);
  const uint32_t told = kernels::kTold;
  return Upload(queue,
                table_ + offsetof(DispatchTable, peers) + rank * sizeof(DispatchPeer) +
                    offsetof(DispatchPeer, masked),
                &told, sizeof told);
}

std::string DeviceBuffer::path(uint32_t rank) const {
  if (rank == rank_) return "here";
  const auto peer = peers_.find(members_[rank]);
  if (peer == peers_.end() || peer->second.out == 0) return "";
  return peer->second.wires ? peer->second.wires->name : "peer memory";
}

Result<Report> DeviceBuffer::ReportOf(const Handle& handle, device::Queue& queue) {
  const Pair& pair = pairs_[handle.pair % 2];
  const kernels::DispatchParameters& p = pair.parameters;
  if (pair.epoch != handle.epoch || pair.number != handle.pair || !pair.finished)
    return Invalid("the report of pair " + std::to_string(handle.pair) + " of epoch " +
                   std::to_string(handle.epoch) +
                   ": only the pair that finished last has a report");
  TANGRAM_RETURN_IF_ERROR(Refresh(queue));
  kernels::DispatchPair seen;
  TANGRAM_RETURN_IF_ERROR(Download(queue, p.pair, &seen, sizeof seen));
  const auto missing = DownloadList<uint32_t>(queue, p.missing, p.tokens);
  if (!missing.ok()) return missing.status();
  const auto ids = DownloadList<int32_t>(queue, p.ids, uint64_t{p.tokens} * p.top_k);
  if (!ids.ok()) return ids.status();
  if (seen.bad_id != UINT64_MAX)
    return Invalid("row " + std::to_string(seen.bad_id / p.top_k) + " is for expert " +
                   std::to_string((*ids)[seen.bad_id]) + " of " + std::to_string(p.experts));
  if (seen.wraps != 0) return Status{Code::kInternal, "a sum of ranks leaves 64-bit fixed point"};
  Report report;
  if (seen.wanted > p.capacity) report.overflow = Overflow{seen.wanted, p.capacity};
  for (uint32_t row = 0; row < p.tokens; ++row)
    for (uint32_t bits = (*missing)[row]; bits != 0; bits &= bits - 1) {
      const auto k = static_cast<uint32_t>(std::countr_zero(bits));
      report.missing.push_back({row, k, (*ids)[row * p.top_k + k]});
    }
  for (uint32_t r = 0; r < active_.size(); ++r)
    if (active_[r] == 0) report.masked.push_back(r);
  return report;
}

}  // namespace tangram::dispatch
