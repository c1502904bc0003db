#include "agent/device/pages.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

namespace tangram::device {
namespace {

constexpr uint64_t kHuge = 2 << 20;
constexpr const char* kShmem = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

// In "always within_size [advise] never deny force": whether madvise gets huge pages.
bool ShmemMakesHugePages() {
  std::ifstream file(kShmem);
  for (std::string word; file >> word;) {
    if (word.front() == '[') return word != "[never]" && word != "[deny]";
  }
  return false;
}

}  // namespace

Pages ChoosePages(bool hugetlb, uint64_t map_bytes) {
  const auto base = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (hugetlb && map_bytes % kHuge == 0) return {PageKind::kHugeTlb, kHuge, kHuge};
  if (ShmemMakesHugePages()) return {PageKind::kTransparent, base, kHuge};
  return {PageKind::kBase, base, 0};
}

std::string Describe(const Pages& pages) {
  switch (pages.kind) {
    case PageKind::kHugeTlb:
      return fmt::format("{} MiB (hugetlb)", pages.unit >> 20);
    case PageKind::kTransparent:
      return fmt::format("{} KiB ({} MiB where the kernel can)", pages.unit >> 10,
                         pages.huge >> 20);
    case PageKind::kBase:
      break;
  }
  return fmt::format("{} KiB", pages.unit >> 10);
}

}  // namespace tangram::device
