#include "tests/gpu/acts.h"

namespace tangram::gpu {
namespace {

// Less than eight minutes in total. Acts with the most information per second come first.
constexpr Act kActs[] = {
    {"machine", "what this machine is", 15, RunMachine},
    {"conformance", "the suite of every device, on this driver", 55, RunConformance},
    {"twins", "kernels against their twins on the host, byte for byte", 65, RunTwins},
    {"cuda-remap", "what calls on virtual memory cost, by the size of a handle", 45, RunRemap},
    {"descriptors", "memory passed to other processes", 40, RunDescriptors},
    {"cuda-reshard", "experts between whole and sliced, all ranks on this GPU", 65, RunReshard},
    {"cuda-kv", "KV from ranks of requests to ranks of heads, all on this GPU", 50, RunKv},
    {"copies", "copy engine and kernels by shape and by blocks; hashes", 45, RunCopies},
    {"graphs", "pages exchanged between replays of a graph", 20, RunGraphs},
    {"tokens", "layers that decode while their weights and KV move", 65, RunTokens},
    {"dispatch", "rows to the ranks of their experts and sums back, all on this GPU", 15,
     RunDispatch},
};

}  // namespace

std::span<const Act> Acts() { return kActs; }

}  // namespace tangram::gpu
