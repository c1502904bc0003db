// Threads that share numbered work items.
#ifndef AGENT_VLLM_OPS_POOL_H_
#define AGENT_VLLM_OPS_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tangram::experts {

// One Run at a time. With one thread Run is a loop.
class Pool {
 public:
  // The caller of Run is one of `threads`.
  explicit Pool(uint32_t threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  uint32_t threads() const { return static_cast<uint32_t>(others_.size()) + 1; }

  // Calls work(item, thread) once for each item < count; an idle thread takes the next one. Returns
  // when all are done. `work` throws no exception.
  void Run(uint32_t count, const std::function<void(uint32_t item, uint32_t thread)>& work);

 private:
  void Wait(uint32_t thread);
  void Take(uint32_t thread);

  std::mutex mutex_;
  std::condition_variable begun_, done_;
  uint64_t round_ = 0;    // number of Run calls
  uint32_t working_ = 0;  // other threads that have not finished the round
  bool ending_ = false;
  const std::function<void(uint32_t, uint32_t)>* work_ = nullptr;
  uint32_t count_ = 0;
  std::atomic<uint32_t> next_{0};
  std::vector<std::thread> others_;
};

}  // namespace tangram::experts

#endif  // AGENT_VLLM_OPS_POOL_H_
