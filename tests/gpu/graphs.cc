// A graph that was captured once reads through a fixed address. Between its replays the pages
// behind that address are exchanged, like an expert's in a flip. No graph is captured again.
#include <fmt/format.h>

#include "tests/gpu/acts.h"
#include "tests/gpu/kernel.h"
#include "tests/gpu/timing.h"

namespace tangram::gpu {
namespace {

// One captured launch of gather_blocks: copies all of `from` to `to`.
class Graph {
 public:
  Graph(const Gpu& gpu, const Kernels& kernels, uint64_t to, uint64_t from, uint64_t bytes)
      : gpu_(gpu), stream_(gpu) {
    gpu.Check(gpu.more().StreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              "beginning to capture");
    const kernels::GatherBlocksParameters parameters{to, bytes, 0, from, bytes, 0, bytes, 1};
    kernels.Launch("gather_blocks", kernels::GatherBlocksLaunch(parameters, AllBlocks(gpu)),
                   parameters, stream_);
    gpu.Check(gpu.more().StreamEndCapture(stream_, &graph_), "ending to capture");
    gpu.Check(gpu.more().GraphInstantiateWithFlags(&executable_, graph_, 0), "making a graph");
  }
  ~Graph() {
    (void)gpu_.more().GraphExecDestroy(executable_);
    (void)gpu_.more().GraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void Replay() const {
    gpu_.Check(gpu_.more().GraphLaunch(executable_, stream_), "replaying a graph");
    gpu_.Wait(stream_);
  }

 private:
  const Gpu& gpu_;
  const Stream stream_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace

void RunGraphs(const Task& task) {
  const Gpu gpu(task.driver);
  const Kernels kernels(gpu);
  const uint64_t bytes = task.small ? 4 << 20 : 36 << 20;  // an expert of Qwen3-235B
  const Handle pages[2] = {{gpu, bytes}, {gpu, bytes}};
  const Range range(gpu, bytes);
  const Buffer result(gpu, bytes);
  const auto exchange = [&](int page) {
    Unmap(gpu, range.address(), bytes);
    Map(gpu, range.address(), pages[page]);
  };
  for (const int page : {0, 1}) {
    Map(gpu, range.address(), pages[page]);
    Upload(gpu, range.address(), std::vector<std::byte>(bytes, static_cast<std::byte>(page + 1)));
    Unmap(gpu, range.address(), bytes);
  }
  Map(gpu, range.address(), pages[0]);
  const Graph graph(gpu, kernels, result.address(), range.address(), bytes);
  std::vector<double> microseconds;
  const int replays = task.small ? 6 : 60;
  uint64_t right = 0;
  for (int i = 0; i < replays; ++i) {
    const int page = i % 2;
    if (i > 0) microseconds.push_back(HostMicroseconds([&] { exchange(page); }));
    graph.Replay();
    const std::vector<std::byte> expected(bytes, static_cast<std::byte>(page + 1));
    if (Download(gpu, result.address(), bytes) == expected) {
      ++right;
    } else {
      task.out->Wrong(fmt::format("replay {} does not read the pages that are mapped now", i));
    }
  }
  Unmap(gpu, range.address(), bytes);
  if (right > 0) task.out->Right("replays that read what was mapped, by one graph", right);
  task.out->Add({.name = fmt::format("exchange of {} MiB between replays", bytes >> 20),
                 .value = Quantile(microseconds, 0.5),
                 .unit = "us",
                 .p99 = Quantile(microseconds, 0.99),
                 .samples = microseconds.size()});
}

}  // namespace tangram::gpu
