// Replaces the comm channels of UCX if the build found no <ucp/api/ucp.h>.
#include "agent/device/ucx_wires.h"

namespace tangram::device {

Result<std::unique_ptr<Wires>> MakeUcxWires(const UcxMemory&, const WireOptions&) {
  return Status(Code::kInvalid,
                "ucx: not part of this build, which found no ucp/api/ucp.h (install libucx-dev, or "
                "configure with -DTANGRAM_UCX_INCLUDE=<folder>)");
}

}  // namespace tangram::device
