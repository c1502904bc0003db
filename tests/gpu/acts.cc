#include "tests/gpu/acts.h"

namespace tangram::gpu {
namespace {

// Together less than eight minutes. What tells most for its seconds comes first.
constexpr Act kActs[] = {
    {"machine", "what this machine is", 20, RunMachine},
    {"conformance", "the suite of every device, on this driver", 60, RunConformance},
    {"twins", "kernels against their twins on the host, byte for byte", 70, RunTwins},
    {"cuda-remap", "what calls on virtual memory cost, by the size of a handle", 50, RunRemap},
    {"descriptors", "memory passed to other processes", 45, RunDescriptors},
    {"cuda-reshard", "experts between whole and sliced, all ranks on this GPU", 85, RunReshard},
    {"cuda-kv", "KV from ranks of requests to ranks of heads, all on this GPU", 60, RunKv},
    {"copies", "copy engine and kernels by shape and by blocks; hashes", 55, RunCopies},
    {"graphs", "pages exchanged between replays of a graph", 25, RunGraphs},
};

}  // namespace

std::span<const Act> Acts() { return kActs; }

}  // namespace tangram::gpu
