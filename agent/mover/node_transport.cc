#include "agent/mover/node_transport.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/base/fault.h"
#include "agent/device/device.h"
#include "agent/device/runs.h"
#include "agent/mover/data_server.h"
#include "agent/net/blocking.h"

namespace tangram::mover {
namespace {

constexpr uint32_t kMostExtents = 1U << 20;  // of a reply: an unchecked claim until they arrive
constexpr uint64_t kBatch = 256 << 20;       // maximum per batch of a GPU

// If this process cannot map the memory, another transport may fetch it.
Status Unreached(const Status& why) {
  return {Code::kUnavailable, "cannot map the memory of a peer: " + why.message()};
}

}  // namespace

// The bytes of a region from an offset on, extent by extent.
struct NodeTransport::Cursor {
  explicit Cursor(const Region& of, uint64_t offset = 0) : region(of) {
    const auto behind = std::upper_bound(of.begins.begin(), of.begins.end(), offset);
    if (behind == of.begins.begin()) return;  // empty region
    index = static_cast<size_t>(behind - of.begins.begin()) - 1;
    at = std::min(offset - of.begins[index], of.extents[index].length);
  }

  const Region& region;
  size_t index = 0;
  uint64_t at = 0;  // within extents[index]

  Result<device::Extent> Next(uint64_t most) {
    const std::vector<device::Extent>& extents = region.extents;
    while (index < extents.size() && at == extents[index].length) {
      ++index;
      at = 0;
    }
    if (index == extents.size()) {
      return Status(Code::kUnavailable, "the source exports fewer bytes than requested");
    }
    const device::Extent& in = extents[index];
    const device::Extent out{in.offset + at, std::min(most, in.length - at)};
    at += out.length;
    return out;
  }

  // The same, mapped.
  Result<device::Memory> NextMemory(uint64_t most) {
    const auto extent = Next(most);
    if (!extent.ok()) return extent.status();
    auto mapped = region.memory->At(*extent);
    if (!mapped.ok()) return Unreached(mapped.status());
    return mapped;
  }
};

// A connection to the socket of one agent. One thread at a time.
class NodeTransport::Link {
 public:
  explicit Link(std::unique_ptr<net::Stream> stream) : stream_(std::move(stream)) {}
  bool Gone() const { return stream_->Disturbed(); }

  Result<Region> Show(NodeTransport* transport, Use use, const std::string& token,
                      const std::stop_token& stop) {
    struct {
      Window::Id id;
      uint64_t bytes, unit, extents;
    } head{};
    static_assert(sizeof head == 40);
    stream_->Expect(1);
    TANGRAM_RETURN_IF_ERROR(net::WriteAll(*stream_, std::as_bytes(std::span(token)), stop));
    TANGRAM_RETURN_IF_ERROR(
        net::ReadAll(*stream_, std::as_writable_bytes(std::span(&head, 1)), stop));
    const std::vector<UniqueFd> descriptors = stream_->TakeDescriptors();
    if (head.extents > kMostExtents || descriptors.size() != 1) {
      return Status(Code::kInvalid,
                    fmt::format("invalid export of the source: {} extents and {} descriptors",
                                head.extents, descriptors.size()));
    }
    std::vector<std::array<uint64_t, 2>> extents(head.extents);
    TANGRAM_RETURN_IF_ERROR(
        net::ReadAll(*stream_, std::as_writable_bytes(std::span(extents)), stop));
    auto memory = transport->MemoryOf(head.id, use, head.bytes, head.unit);
    if (!memory.ok()) return Unreached(memory.status());
    Region out{std::move(memory).value(), {}, {}};
    uint64_t begin = 0;
    for (const auto& [offset, length] : extents) {
      out.extents.push_back({offset, length});
      out.begins.push_back(begin);
      begin += length;
    }
    TANGRAM_RETURN_IF_ERROR(Take(out, head.unit, descriptors[0], stop));
    return out;
  }

  // Checks that the last exported memory is still granted. kUnavailable: it is not.
  Status Still(const std::stop_token& stop) {
    const std::array<std::byte, 16> question{};
    uint64_t answer = 0;
    TANGRAM_RETURN_IF_ERROR(net::WriteAll(*stream_, question, stop));
    return net::ReadAll(*stream_, std::as_writable_bytes(std::span(&answer, 1)), stop);
  }

 private:
  // Maps the descriptors of all extents, or prepares that; the first one's descriptor has arrived.
  Status Take(const Region& region, uint64_t unit, const UniqueFd& first,
              const std::stop_token& stop) {
    if (region.extents.empty()) return OkStatus();
    PeerMemory& memory = *region.memory;
    Status status = memory.Give(region.extents[0].offset / unit, first.get());
    if (!status.ok()) return Unreached(status);
    const auto lacking = memory.Lacks(region.extents);
    if (!lacking.ok()) return lacking.status();
    TANGRAM_RETURN_IF_ERROR(Bring(*lacking, &memory, stop));
    status = memory.Prepare(region.extents);
    return status.ok() ? status : Unreached(status);
  }

  // Requests these descriptors of the last exported memory, many per batch.
  Status Bring(std::span<const uint64_t> numbers, PeerMemory* memory, const std::stop_token& stop) {
    constexpr size_t kAtOnce = 128;
    for (size_t first = 0; first < numbers.size(); first += kAtOnce) {
      const auto now = numbers.subspan(first, std::min(kAtOnce, numbers.size() - first));
      std::vector<std::array<uint64_t, 2>> questions;
      for (const uint64_t number : now) questions.push_back({0, number + 1});
      std::vector<uint64_t> answers(now.size());
      stream_->Expect(now.size());
      TANGRAM_RETURN_IF_ERROR(net::WriteAll(*stream_, std::as_bytes(std::span(questions)), stop));
      TANGRAM_RETURN_IF_ERROR(
          net::ReadAll(*stream_, std::as_writable_bytes(std::span(answers)), stop));
      const std::vector<UniqueFd> descriptors = stream_->TakeDescriptors();
      if (descriptors.size() != now.size()) {
        return {Code::kInvalid, fmt::format("the source sent {} of {} requested descriptors",
                                            descriptors.size(), now.size())};
      }
      for (size_t i = 0; i < now.size(); ++i) {
        const Status given = memory->Give(now[i], descriptors[i].get());
        if (!given.ok()) return Unreached(given);
      }
    }
    return OkStatus();
  }

  const std::unique_ptr<net::Stream> stream_;
};

class NodeTransport::Kv final : public KvChannel {
 public:
  Kv(NodeTransport* transport, Whose whose, std::unique_ptr<Link> link, Region region)
      : transport_(transport),
        whose_(std::move(whose)),
        link_(std::move(link)),
        region_(std::move(region)) {}
  ~Kv() override {
    if (link_ != nullptr) transport_->Rest(whose_, std::move(link_));
  }
  bool Gone() const override { return link_ == nullptr || link_->Gone(); }

  Status Read(std::span<const KvRange> ranges, bool /*spoil*/,
              const std::stop_token& stop) override {
    std::vector<device::CopyOp> copies;
    for (const KvRange& range : ranges) {
      Cursor from(region_, range.source_offset);
      for (uint64_t done = 0; done < range.to.bytes;) {
        const auto memory = from.NextMemory(range.to.bytes - done);
        if (!memory.ok()) return memory.status();
        copies.push_back({range.to.Part(done, memory->bytes), *memory});
        done += memory->bytes;
      }
    }
    if (copies.empty()) return OkStatus();
    TANGRAM_RETURN_IF_ERROR(CopyAll(copies));
    if (link_ == nullptr) return {Code::kUnavailable, "the connection has failed"};
    Status still = link_->Still(stop);
    if (!still.ok()) link_.reset();
    return still;
  }

 private:
  static Status CopyAll(std::span<const device::CopyOp> copies) {
    return copies[0].to.device != nullptr ? copies[0].to.device->Copy(copies).Wait()
                                          : copies[0].from.device->Copy(copies).Wait();
  }

  NodeTransport* const transport_;  // outlives its channels
  const Whose whose_;
  std::unique_ptr<Link> link_;  // null: failed
  const Region region_;
};

NodeTransport::NodeTransport(std::string folder, std::shared_ptr<net::Credentials> credentials,
                             std::shared_ptr<const device::Platform> platform,
                             const net::WaitLimits& kv)
    : folder_(std::move(folder)),
      credentials_(std::move(credentials)),
      platform_(std::move(platform)),
      kv_limits_(kv) {}

NodeTransport::~NodeTransport() = default;

bool NodeTransport::Reaches(const v1::PeerAddress& peer) const {
  // A killed agent leaves its socket, and another agent may have its address by now.
  return net::InUse(DataServer::NodeSocket(folder_, peer.data()));
}

Result<std::unique_ptr<NodeTransport::Link>> NodeTransport::Take(const Whose& whose,
                                                                 const std::stop_token& stop) {
  {
    const std::scoped_lock lock(mu_);
    auto idle = idle_.extract(whose);
    if (!idle.empty() && !idle.mapped()->Gone()) return std::move(idle.mapped());
  }
  auto stream = net::Connect(DataServer::NodeSocket(folder_, whose.first), credentials_, stop,
                             whose.second == Use::kKv ? kv_limits_ : net::WaitLimits());
  // Includes a listener that is no agent of this world: any process that may write to the folder
  // can listen there, and the source itself may still be reachable.
  if (!stream.ok()) return Status(Code::kUnavailable, stream.status().message());
  return std::make_unique<Link>(std::move(stream).value());
}

void NodeTransport::Rest(const Whose& whose, std::unique_ptr<Link> link) {
  const std::scoped_lock lock(mu_);
  idle_.emplace(whose, std::move(link));
}

Result<std::shared_ptr<PeerMemory>> NodeTransport::MemoryOf(const Window::Id& id, Use use,
                                                            uint64_t bytes, uint64_t unit) {
  const std::scoped_lock lock(mu_);
  std::shared_ptr<PeerMemory>& memory = memories_[id];
  if (memory == nullptr) {
    device::RankDevices importers = platform_->Importers();
    auto made =
        PeerMemory::Of(std::move(use == Use::kKv ? importers.kv : importers.weights), bytes, unit);
    if (!made.ok()) return made.status();
    memory = std::move(made).value();
  }
  return memory;
}

// Copies of one batch. A destination filled by one copy is hashed in the same pass.
struct NodeTransport::Copies {
  std::vector<device::CopyOp> copies;
  std::vector<device::HashOp> hashes;  // after the copies: destinations filled by several of them

  Status Run() {
    if (copies.empty()) return OkStatus();
    TANGRAM_RETURN_IF_ERROR(copies[0].from.device->Copy(copies).Wait());
    for (const device::HashOp& op : hashes) {
      TANGRAM_RETURN_IF_ERROR(device::HashNow(op.of, op.hash));
    }
    return OkStatus();
  }
};

// Adds a unit of a slab whose units are interleaved.
Status NodeTransport::AddApart(const Region& region, const Target& target, uint64_t* hash,
                               Copies* copies) {
  const device::Memory &to = target.to, &from = target.from;
  const uint64_t slab = from.shape->units * from.shape->unit_bytes();
  auto all = Cursor(region, from.address).NextMemory(slab);
  if (!all.ok()) return all.status();
  if (all->bytes == slab) {
    all->shape = from.shape;
    copies->copies.push_back(
        {to, all->Part(from.unit * from.shape->unit_bytes(), from.bytes), hash});
    return OkStatus();
  }
  // The slab is mapped in parts, so copy line by line.
  std::vector<device::Strip> strips;
  device::EachStrip(from, nullptr, [&](const device::Strip& strip) { strips.push_back(strip); });
  Status status;
  size_t next = 0;
  device::EachStrip(to, from.shape, [&](const device::Strip& strip) {
    const device::Strip& there = strips[next++];
    for (uint64_t line = 0; line < strip.lines && status.ok(); ++line) {
      Cursor cursor(region, there.address + line * there.pitch);
      for (uint64_t done = 0; done < strip.bytes;) {
        const auto memory = cursor.NextMemory(strip.bytes - done);
        if (!memory.ok()) {
          status = memory.status();
          return;
        }
        copies->copies.push_back(
            {{to.device, strip.address + line * strip.pitch + done, memory->bytes}, *memory});
        done += memory->bytes;
      }
    }
  });
  copies->hashes.push_back({to, hash});
  return status;
}

Status NodeTransport::AddOne(const Region& region, const Target& target, Cursor* next,
                             uint64_t* hash, Copies* copies) {
  const device::Memory& to = target.to;
  if (target.from.shape != nullptr) return AddApart(region, target, hash, copies);
  Cursor placed(region, target.from.address);
  Cursor& from = target.from.bytes > 0 ? placed : *next;
  for (uint64_t at = 0; at < to.bytes;) {
    const auto memory = from.NextMemory(to.bytes - at);
    if (!memory.ok()) return memory.status();
    const bool whole = memory->bytes == to.bytes;
    copies->copies.push_back(
        {whole ? to : to.Part(at, memory->bytes), *memory, whole ? hash : nullptr});
    at += memory->bytes;
    if (!whole && at == to.bytes) copies->hashes.push_back({to, hash});
  }
  return OkStatus();
}

Status NodeTransport::Pull(const v1::PeerAddress& peer, const std::string& token,
                           std::span<const Target> targets, const std::stop_token& stop,
                           const std::function<void(uint64_t)>& done) {
  const Whose whose{peer.data(), Use::kPieces};
  auto link = Take(whose, stop);
  if (!link.ok()) return link.status();
  auto region = (*link)->Show(this, whose.second, token, stop);
  if (!region.ok()) return region.status();
  Cursor next(*region);
  Copies copies;
  std::vector<uint64_t> hashes;
  for (size_t first = 0, end = 0; first < targets.size(); first = end) {
    if (stop.stop_requested()) return {Code::kUnavailable, "stopped"};
    // One at a time if the CPU copies; a GPU gets many in one batch.
    const bool reached = !device::View(device::FirstByte(targets[first].to)).empty();
    const uint64_t most = reached ? 1 : kBatch;
    for (uint64_t bytes = 0; end < targets.size() && bytes < most; ++end) {
      bytes += targets[end].to.bytes;
    }
    hashes.assign(end - first, 0);
    copies.copies.clear();
    copies.hashes.clear();
    for (size_t i = first; i < end; ++i) {
      TANGRAM_RETURN_IF_ERROR(AddOne(*region, targets[i], &next, &hashes[i - first], &copies));
    }
    TANGRAM_RETURN_IF_ERROR(copies.Run());
    for (size_t i = first; i < end; ++i) {
      uint64_t hash = hashes[i - first];
      switch (fault::Hit("stage.after_fetch")) {
        case fault::Action::kCorrupt:
          hash ^= 1;
          break;
        case fault::Action::kError:
          return {Code::kUnavailable, "fault point stage.after_fetch"};
        case fault::Action::kNone:
          break;
      }
      if (hash != targets[i].hash) {
        // Or the lease has ended, and the memory has another use.
        TANGRAM_RETURN_IF_ERROR((*link)->Still(stop));
        return {Code::kCorrupt, fmt::format("unit {} of {} in memory of {} differs from its hash",
                                            i, targets.size(), peer.data())};
      }
      done(targets[i].to.bytes);
    }
  }
  Rest(whose, std::move(link).value());
  return OkStatus();
}

Result<std::unique_ptr<KvChannel>> NodeTransport::OpenKv(const v1::PeerAddress& peer,
                                                         const std::string& token,
                                                         const std::stop_token& stop) {
  const Whose whose{peer.data(), Use::kKv};
  auto link = Take(whose, stop);
  if (!link.ok()) return link.status();
  auto region = (*link)->Show(this, whose.second, token, stop);
  if (!region.ok()) return region.status();
  return std::unique_ptr<KvChannel>(
      std::make_unique<Kv>(this, whose, std::move(link).value(), std::move(region).value()));
}

void NodeTransport::EndAttempt() {
  decltype(memories_) memories;  // unmapped after the lock is released
  const std::scoped_lock lock(mu_);
  memories.swap(memories_);
  std::erase_if(idle_, [](const auto& link) { return link.second->Gone(); });
}

}  // namespace tangram::mover
