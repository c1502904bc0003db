#include "agent/transition/peers.h"

#include <condition_variable>
#include <mutex>

namespace tangram {

void AskAll(Peers* peers, const std::set<std::string>& agents, const v1::QueryRequest& request,
            const std::stop_token& stop,
            const std::function<bool(const std::string& agent, const v1::QueryResponse&)>& enough) {
  std::mutex mu;
  std::condition_variable changed;
  size_t open = agents.size();
  bool ended = false;
  std::stop_source end;
  const std::stop_callback outer(stop, [&] { end.request_stop(); });
  for (const std::string& agent : agents) {
    peers->Query(agent, request, end.get_token(), [&, agent](Result<v1::QueryResponse> answer) {
      const std::scoped_lock lock(mu);
      if (!ended && answer.ok()) ended = enough(agent, *answer);
      --open;
      changed.notify_all();  // under the lock: `changed` is destroyed soon after
    });
  }
  std::unique_lock lock(mu);
  changed.wait(lock, [&] { return open == 0 || ended; });
  lock.unlock();
  end.request_stop();
  lock.lock();
  changed.wait(lock, [&] { return open == 0; });
}

}  // namespace tangram
