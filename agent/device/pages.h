// Which pages the host's memory is made of. It is chosen once for a device: huge pages make a
// mapping cheap and copies need fewer entries of the TLB; with pages of 4 KiB mapping anew costs
// more than copying (docs/performance.md).
#pragma once

#include <cstdint>
#include <string>

namespace tangram::device {

enum class PageKind {
  kBase,         // the kernel's smallest
  kTransparent,  // the same, of which the kernel makes huge ones where it can (shmem_enabled)
  kHugeTlb,      // from the pool that a pod asks for (resource hugepages-2Mi)
};

struct Pages {
  PageKind kind = PageKind::kBase;
  uint64_t unit = 4096;  // of a mapping, in bytes
  uint64_t huge = 0;     // bytes of a huge page, 0: there are none
};

// What this machine has for memory that is mapped in multiples of `map_bytes`. `hugetlb`: the pod
// was given huge pages, and wants them used.
Pages ChoosePages(bool hugetlb, uint64_t map_bytes);
std::string Describe(const Pages& pages);

}  // namespace tangram::device
