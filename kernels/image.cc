#include "kernels/kernels.h"

namespace tangram::kernels {
namespace {

// One word more than the image, which may be empty.
alignas(16) constexpr uint64_t kWords[] = {
#include TANGRAM_IMAGE
    0};

}  // namespace

std::span<const std::byte> Image() {
  return std::as_bytes(std::span(kWords)).first(sizeof(kWords) - sizeof(kWords[0]));
}

}  // namespace tangram::kernels
