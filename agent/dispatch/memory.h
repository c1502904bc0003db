// Memory for rows that are written before they are read: it is not cleared when it grows.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <new>

namespace tangram::dispatch {

class RowMemory {
 public:
  static constexpr size_t kAlign = 64;

  // Room for at least `bytes`; growing loses the content.
  uint8_t* Get(size_t bytes) {
    if (bytes > size_) {
      memory_.reset();  // frees the old memory first
      const size_t align = bytes < 2 * kHuge ? kAlign : kHuge;
      memory_ = {static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{align})),
                 Free{align}};
      // Rows are accessed in no order: with small pages each access is a page walk. Without huge
      // pages the memory stays as it is.
      if (align == kHuge) (void)madvise(memory_.get(), bytes, MADV_HUGEPAGE);
      size_ = bytes;
    }
    return memory_.get();
  }
  uint8_t* data() const { return memory_.get(); }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  struct Free {
    size_t align;
    Free() : align(kAlign) {}
    explicit Free(size_t a) : align(a) {}
    void operator()(uint8_t* at) const { ::operator delete (at, std::align_val_t{align}); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  size_t size_ = 0;
};

}  // namespace tangram::dispatch
