#include "agent/dispatch/hello.h"

#include <algorithm>
#include <cstring>

namespace tangram::dispatch {
namespace {

struct Record {
  static constexpr uint64_t kMagic = 0x31485344'47544e54;
  uint64_t magic;
  uint64_t from_generation, to_generation;
  uint64_t slot_bytes, attempt;
  uint32_t slots, path, lane;
  uint32_t hidden, top_k, experts, x, wire, sums, most_tokens;
  uint32_t from_bytes, to_bytes;
  char from[Hello::kMostName], to[Hello::kMostName];
};
static_assert(sizeof(Record) <= Hello::kBytes);

bool Good(uint32_t bytes) { return bytes > 0 && bytes <= Hello::kMostName; }

}  // namespace

std::string NameOf(const MemberId& id) { return id.name + "/" + std::to_string(id.generation); }

Result<std::array<uint8_t, Hello::kBytes>> Hello::Encode() const {
  if (!Good(static_cast<uint32_t>(from.name.size())) ||
      !Good(static_cast<uint32_t>(to.name.size())))
    return Status{Code::kInvalid, "a member's name of " + std::to_string(from.name.size()) +
                                      " or " + std::to_string(to.name.size()) + " bytes: 1 to " +
                                      std::to_string(kMostName)};
  Record r{Record::kMagic,
           from.generation,
           to.generation,
           geometry.slot_bytes,
           attempt,
           geometry.slots,
           static_cast<uint32_t>(path),
           static_cast<uint32_t>(lane),
           format.hidden,
           format.top_k,
           format.experts,
           static_cast<uint32_t>(format.x),
           static_cast<uint32_t>(format.wire),
           static_cast<uint32_t>(format.sums),
           format.most_tokens,
           static_cast<uint32_t>(from.name.size()),
           static_cast<uint32_t>(to.name.size()),
           {},
           {}};
  std::ranges::copy(from.name, r.from);
  std::ranges::copy(to.name, r.to);
  std::array<uint8_t, kBytes> out{};
  std::memcpy(out.data(), &r, sizeof r);
  return out;
}

Result<Hello> Hello::Decode(std::span<const uint8_t, kBytes> bytes) {
  Record r;
  std::memcpy(&r, bytes.data(), sizeof r);
  if (r.magic != Record::kMagic || !Good(r.from_bytes) || !Good(r.to_bytes) || r.lane >= kLanes ||
      (r.path != static_cast<uint32_t>(Path::kSharedMemory) &&
       r.path != static_cast<uint32_t>(Path::kTcp)))
    return Status{Code::kInvalid, "no hello came first"};
  Hello out;
  out.from = {std::string(r.from, r.from_bytes), r.from_generation};
  out.to = {std::string(r.to, r.to_bytes), r.to_generation};
  out.path = static_cast<Path>(r.path);
  out.lane = static_cast<Lane>(r.lane);
  out.attempt = r.attempt;
  out.format = {r.hidden,
                r.top_k,
                r.experts,
                static_cast<Element>(r.x),
                static_cast<Element>(r.wire),
                static_cast<Element>(r.sums),
                r.most_tokens};
  out.geometry = {r.slots, r.slot_bytes};
  return out;
}

}  // namespace tangram::dispatch
