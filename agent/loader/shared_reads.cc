#include "agent/loader/shared_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/device/device.h"

namespace tangram::loader {

SharedReads::List::List(SharedReads* reads, std::vector<Want> wants) : reads_(reads) {
  entries_.reserve(wants.size());  // pointers to entries must stay valid
  const std::scoped_lock lock(reads->mu_);
  for (Want& want : wants) {
    Entry& entry = entries_.emplace_back();
    entry.want = want;
    reads->wanted_[{want.layer, want.expert}].push_back(&entry);
  }
}

SharedReads::List::~List() {
  std::unique_lock lock(reads_->mu_);
  for (Entry& entry : entries_) {
    reads_->changed_.wait(lock, [&] { return entry.state != State::kReading; });
    if (entry.state == State::kThere) continue;
    const auto it = reads_->wanted_.find({entry.want.layer, entry.want.expert});
    std::erase(it->second, &entry);
    if (it->second.empty()) reads_->wanted_.erase(it);
  }
}

Result<std::vector<uint64_t>> SharedReads::List::Bring(size_t i) {
  Entry& entry = entries_.at(i);
  std::unique_lock lock(reads_->mu_);
  reads_->changed_.wait(lock, [&] { return entry.state != State::kReading; });
  if (entry.state == State::kThere) return entry.hashes;
  if (!entry.failed.ok()) return std::exchange(entry.failed, OkStatus());
  const std::vector<Entry*> taken = reads_->TakeLocked(&entry);
  lock.unlock();
  Status status = reads_->Read(taken);
  lock.lock();
  auto& waiting = reads_->wanted_[{entry.want.layer, entry.want.expert}];
  for (Entry* each : taken) {
    each->state = status.ok() ? State::kThere : State::kOpen;
    if (status.ok()) {
      std::erase(waiting, each);
    } else if (each != &entry) {
      each->failed = status;
    }
  }
  if (waiting.empty()) reads_->wanted_.erase({entry.want.layer, entry.want.expert});
  reads_->changed_.notify_all();
  if (!status.ok()) return status;
  return entry.hashes;
}

// This entry, and the open entries of other ranks for the same expert. (Two entries with a common
// granule are read one after the other.)
std::vector<SharedReads::Entry*> SharedReads::TakeLocked(Entry* mine) {
  std::vector<Entry*> out{mine};
  for (Entry* each : wanted_.at({mine->want.layer, mine->want.expert})) {
    const layout::Run& run = each->want.run;
    const bool apart = std::all_of(out.begin(), out.end(), [&](const Entry* other) {
      const layout::Run& taken = other->want.run;
      return run.count == 0 || taken.count == 0 || run.start + run.count <= taken.start ||
             taken.start + taken.count <= run.start;
    });
    if (each->state == State::kOpen && apart) out.push_back(each);
  }
  for (Entry* each : out) each->state = State::kReading;
  return out;
}

Status SharedReads::Read(std::span<Entry* const> entries) const {
  std::vector<Checkpoint::Target> targets;
  std::vector<std::vector<std::byte>> copies(entries.size());  // where the CPU cannot reach
  for (size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = *entries[i];
    const Want& want = entry.want;
    device::Memory place = want.to;
    place.shape = nullptr;
    if (want.to.shape != nullptr) place.bytes = want.to.shape->units * want.to.shape->unit_bytes();
    std::span<std::byte> out = device::View(place), tail = device::View(want.tail);
    const bool reached = out.size() == place.bytes && tail.size() == want.tail.bytes;
    if (!reached) {
      copies[i].resize(want.to.bytes + want.tail.bytes);
      out = std::span(copies[i]).first(want.to.bytes);
      tail = std::span(copies[i]).subspan(want.to.bytes);
    }
    entry.hashes.assign(want.run.count + (tail.empty() ? 0 : 1), 0);
    targets.push_back({want.run, out, std::span(entry.hashes).first(want.run.count), tail,
                       tail.empty() ? nullptr : &entry.hashes.back(),
                       reached ? want.to.shape : nullptr, reached ? want.to.unit : 0});
  }
  const Want& first = entries[0]->want;
  TANGRAM_RETURN_IF_ERROR(checkpoint_->ReadRuns(first.layer, first.expert, targets));
  const uint64_t unit = checkpoint_->geometry().granule_bytes();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (copies[i].empty()) continue;
    const Want& want = entries[i]->want;
    std::vector<uint64_t> came(entries[i]->hashes.size());
    std::vector<device::CopyOp> ops;
    const auto add = [&](const device::Memory& to, uint64_t at) {
      ops.push_back(
          {to, device::Memory::Own(std::span(copies[i]).subspan(at, to.bytes)), &came[ops.size()]});
    };
    for (uint32_t g = 0; g < want.run.count; ++g) add(want.to.Part(g * unit, unit), g * unit);
    if (want.tail.bytes > 0) add(want.tail, want.to.bytes);
    device::Device& device = *(want.tail.bytes > 0 ? want.tail : want.to).device;
    TANGRAM_RETURN_IF_ERROR(device.Copy(ops).Wait());
    if (came != entries[i]->hashes) {
      return {Code::kCorrupt, fmt::format("layer {}, expert {}: the bytes in the rank's memory "
                                          "differ from the bytes that were read",
                                          want.layer, want.expert)};
    }
  }
  return OkStatus();
}

}  // namespace tangram::loader
