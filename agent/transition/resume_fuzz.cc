// Damaged data from an engine after its agent's death: extents, layout, descriptors, control page.
// A resume either succeeds, and every page is owned once, or is rejected, and the rank is
// unchanged: it can still resume with undamaged data.
#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <cstdlib>
#include <iostream>

#include "agent/transition/testing/agent.h"

namespace tangram::testing {
namespace {

void Want(bool holds, const std::string& what) {
  if (holds) return;
  std::cerr << "resume_fuzz: " << what << std::endl;
  std::abort();
}

void Want(const Status& status, const char* what) {
  Want(status.ok(), std::string(what) + ": " + status.message());
}

// A restarted agent with one rank, and the memory that the rank's engine kept.
class Scene {
 public:
  Scene() {
    spdlog::set_level(spdlog::level::off);
    Want(agent_.Take(v1::FLIP_KIND_FIRST, 1, agent_.First()), "first layout");
    Want(agent_.Retire(1), "retire");
    agent_.Die();
    sound_ = agent_.kept[0].resume;
    page_.resize(static_cast<size_t>(lseek(control(), 0, SEEK_END)));
    Want(pread(control(), page_.data(), page_.size(), 0) == static_cast<ssize_t>(page_.size()),
         "the control page");
  }

  void Try(FuzzedDataProvider& in) {
    const bool twice = in.ConsumeBool();
    fds_ = agent_.kept[0].Fds();
    v1::Resume resume = sound_;
    while (in.remaining_bytes() > 0) Damage(in, &resume);
    const std::string before = Look();
    const Status resumed = agent_.executor->Resume(0, resume, std::move(fds_), {}).status();
    Want(agent_.stores.members[0]->store->Audit(), "audit");
    if (resumed.ok()) {
      const v1::StatusResponse status = agent_.GetStatus();
      Want(status.ranks(0).member().id() == resume.member(), "another member");
      Want(status.ranks(0).in_world() == (layout::RankOf(resume.layout(), resume.member()) >= 0),
           "in the world or not");
      (void)agent_.executor->GetLoad();
    } else {
      Want(Look() == before, "a refusal changed the rank: " + resumed.message());
      if (twice) Again();
    }
    Restore();
    if (resumed.ok() || twice) agent_.Reborn();
  }

 private:
  int control() const { return agent_.kept[0].control(); }
  std::string Look() { return agent_.GetStatus().SerializeAsString(); }
  void Restore() {
    Want(pwrite(control(), page_.data(), page_.size(), 0) == static_cast<ssize_t>(page_.size()),
         "the control page");
  }
  void Again() {
    Restore();
    Want(agent_.Resume(0), "what is sound");
  }

  static uint64_t Number(FuzzedDataProvider& in, uint64_t sound) {
    switch (in.ConsumeIntegralInRange(0, 4)) {
      case 0:
        return in.PickValueInArray<uint64_t>({0, 1, 4095, 4096, 1u << 21, UINT32_MAX, UINT64_MAX,
                                              UINT64_MAX - 4095, uint64_t{1} << 63});
      case 1:
        return sound + 4096 * in.ConsumeIntegralInRange<uint64_t>(0, 8) - 4 * 4096;
      case 2:
        return 4096 * in.ConsumeIntegral<uint16_t>();
      case 3:
        return in.ConsumeIntegral<uint64_t>();
      default:
        return sound ^ (uint64_t{1} << in.ConsumeIntegralInRange(0, 63));
    }
  }

  template <typename Field>
  static auto* One(FuzzedDataProvider& in, Field* field) {
    using Item = std::remove_pointer_t<decltype(field->Mutable(0))>;
    return field->empty() ? static_cast<Item*>(nullptr)
                          : field->Mutable(in.ConsumeIntegralInRange(0, field->size() - 1));
  }

  void Damage(FuzzedDataProvider& in, v1::Resume* resume) {
    switch (in.ConsumeIntegralInRange(0, 8)) {
      case 0:
      case 1:
        return DamageExtent(in, One(in, resume->mutable_mappings()));
      case 2:
        return DamageMappings(in, resume);
      case 3:
        return DamageLayout(in, resume->mutable_layout());
      case 4:
        return DamageLayer(in, One(in, resume->mutable_layout()->mutable_layers()));
      case 5:
        return DamageFds(in);
      case 6: {
        const auto at = in.ConsumeIntegralInRange<off_t>(0, static_cast<off_t>(page_.size()) - 1);
        const auto byte = in.ConsumeIntegral<uint8_t>();
        return Want(pwrite(control(), &byte, 1, at) == 1, "the control page");
      }
      case 7:
        resume->set_member(in.ConsumeBool() ? "pod-0/0/2" : in.ConsumeRandomLengthString(64));
        return;
      default:
        // Removes the layout, or replaces the message by whatever a parser reads from random bytes.
        if (in.ConsumeBool()) return resume->clear_layout();
        (void)resume->ParseFromString(in.ConsumeRandomLengthString());
        return;
    }
  }

  static void DamageExtent(FuzzedDataProvider& in, v1::Mapping* mapping) {
    if (mapping == nullptr) return;
    v1::Extent* extent = in.ConsumeIntegralInRange(0, 7) == 0 ? mapping->add_extents()
                                                              : One(in, mapping->mutable_extents());
    if (extent == nullptr) return;
    switch (in.ConsumeIntegralInRange(0, 2)) {
      case 0:
        return extent->set_offset(Number(in, extent->offset()));
      case 1:
        return extent->set_length(Number(in, extent->length()));
      default:
        return extent->set_fd_index(in.ConsumeIntegral<uint8_t>());
    }
  }

  static void DamageMappings(FuzzedDataProvider& in, v1::Resume* resume) {
    v1::Mapping* mapping = One(in, resume->mutable_mappings());
    if (mapping == nullptr) return;
    switch (in.ConsumeIntegralInRange(0, 5)) {
      case 0:
        return mapping->set_bank(static_cast<uint32_t>(Number(in, mapping->bank())));
      case 1:
        return mapping->set_offset(Number(in, mapping->offset()));
      case 2:
        return mapping->set_dense(!mapping->dense());
      case 3:
        return mapping->Swap(One(in, resume->mutable_mappings()));
      case 4: {
        const v1::Mapping copy = *mapping;
        *resume->add_mappings() = copy;
        return;
      }
      default:
        mapping->Swap(resume->mutable_mappings(resume->mappings_size() - 1));
        return resume->mutable_mappings()->RemoveLast();
    }
  }

  static void DamageLayout(FuzzedDataProvider& in, v1::Layout* layout) {
    switch (in.ConsumeIntegralInRange(0, 5)) {
      case 0:
        return layout->set_epoch(in.ConsumeIntegral<uint64_t>());
      case 1:
        return layout->set_banks(static_cast<uint32_t>(Number(in, layout->banks())));
      case 2:
        return layout->set_revision(in.ConsumeRandomLengthString(8));
      case 3:
        layout->add_members()->set_id(in.ConsumeBool() ? "pod-0/0/2" : "pod-1/0/1");
        return;
      case 4:
        return layout->mutable_dense()->add_ranks(static_cast<uint32_t>(Number(in, 0)));
      default:
        return layout->mutable_dense()->clear_ranks();
    }
  }

  static void DamageLayer(FuzzedDataProvider& in, v1::LayerLayout* layer) {
    if (layer == nullptr) return;
    v1::ExpertGroup* group = One(in, layer->mutable_experts());
    switch (in.ConsumeIntegralInRange(0, 5)) {
      case 0:
        return layer->set_bank_offset(static_cast<int32_t>(Number(in, 0)));
      case 1:
        return layer->set_expert_group_size(static_cast<uint32_t>(Number(in, 1)));
      case 2:
        return layer->set_layer(static_cast<uint32_t>(Number(in, layer->layer())));
      case 3:
        if (group != nullptr) group->add_ranks(static_cast<uint32_t>(Number(in, 0)));
        return;
      case 4:
        if (group != nullptr) group->add_slots(in.ConsumeIntegralInRange<uint32_t>(0, 5));
        return;
      default:
        if (group == nullptr || group->slots().empty()) return;
        group->set_slots(in.ConsumeIntegralInRange(0, group->slots_size() - 1),
                         in.ConsumeIntegralInRange<uint32_t>(0, 5));
    }
  }

  void DamageFds(FuzzedDataProvider& in) {
    if (fds_.empty()) return;
    const auto one = [&] {
      return std::next(fds_.begin(), in.ConsumeIntegralInRange<ptrdiff_t>(
                                         0, static_cast<ptrdiff_t>(fds_.size()) - 1));
    };
    UniqueFd& fd = one()->second;
    switch (in.ConsumeIntegralInRange(0, 4)) {
      case 0:
        fds_.erase(one());
        return;
      case 1:
        return std::swap(fd, one()->second);
      case 2:
        return fd.reset(open("/dev/null", O_RDWR | O_CLOEXEC));
      case 3:
        fds_[in.ConsumeIntegral<uint8_t>()] = UniqueFd(dup(fd.get()));
        return;
      default:
        // Of the right length, but may shrink: not valid as an arena.
        fd.reset(memfd_create("strange", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        Want(ftruncate(fd.get(), 4096 * in.ConsumeIntegralInRange<off_t>(0, 512)) == 0, "a memfd");
    }
  }

  OneAgent agent_{1};
  v1::Resume sound_;
  std::string page_;
  KeptFds fds_;
};

}  // namespace
}  // namespace tangram::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const scene = new tangram::testing::Scene;
  FuzzedDataProvider in(data, size);
  scene->Try(in);
  return 0;
}
