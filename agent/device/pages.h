// The page kind of the host's memory, chosen once per device. Huge pages make a mapping cheap, and
// copies need fewer TLB entries; with 4 KiB pages, mapping again costs more than copying
// (docs/performance.md).
#pragma once

#include <cstdint>
#include <string>

namespace tangram::device {

enum class PageKind {
  kBase,         // base pages
  kTransparent,  // base pages that the kernel may make huge (shmem_enabled)
  kHugeTlb,      // from the pod's pool (resource hugepages-2Mi)
};

struct Pages {
  PageKind kind = PageKind::kBase;
  uint64_t unit = 4096;  // bytes per mapping unit
  uint64_t huge = 0;     // bytes per huge page, 0: none
};

// The best kind of this machine for memory that is mapped in multiples of `map_bytes`. `hugetlb`:
// the pod requested huge pages, so use them.
Pages ChoosePages(bool hugetlb, uint64_t map_bytes);
std::string Describe(const Pages& pages);

}  // namespace tangram::device
