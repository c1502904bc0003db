// The UNIX socket on which engines attach: who they are, one per device, and the calls that
// the executor makes to them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/limits.h"
#include "agent/gate/frame.h"
#include "agent/server/descriptor_book.h"
#include "agent/transition/engines.h"
#include "agent/transition/executor.h"

namespace tangram {

class EngineServer : public Engines {
 public:
  struct Options {
    std::string path;   // of the socket; replaced when a dead one lies there
    std::string token;  // what an engine must show
    v1::SlabFormat slab_format = v1::SLAB_FORMAT_GRANULE_MAJOR;  // that it must take
    std::chrono::milliseconds reply_timeout = limits::kEngineReply;
    std::chrono::milliseconds attach_timeout{5'000};
  };

  explicit EngineServer(Options options) : options_(std::move(options)) {}
  ~EngineServer() override;

  // Listens and takes engines for `executor` until Stop.
  Status Start(Executor* executor);
  void Stop();

  EngineInfo Info(uint32_t device) override;
  Status Prepare(uint32_t device, const v1::EnginePrepare& prepare, std::stop_token stop) override;
  Status Map(uint32_t device, const v1::Header& header, EngineMappings mappings,
             std::stop_token stop) override;
  Status Unmap(uint32_t device, const v1::EngineUnmap& unmap) override;
  void Abort(uint32_t device, const v1::EngineAbort& abort) override;
  void Dismiss(uint32_t device, const std::string& reason) override;

 private:
  // One connection. The thread that serves it alone receives.
  struct Session {
    explicit Session(UniqueFd socket) : channel(std::move(socket)) {}
    // Sends a message whose extents name descriptors by their place among `descriptors`.
    Status Send(v1::EngineMessage message, std::span<const SharedFd> descriptors);

    FrameChannel channel;
    std::mutex book_mu;
    DescriptorBook book;
    EngineInfo info;
    uint32_t device = 0;
    // The pull under way, for which the engine waits: apart from the thread that receives, which
    // sees meanwhile that the engine ended. Used by that thread alone.
    std::jthread pull;
    std::atomic<bool> pulling{false};
    // Guarded by EngineServer::mu_:
    bool ready = false;  // Attached is out
    bool gone = false;
    bool dismissed = false;  // ... and its process may live: it has the rank's memory mapped
    std::map<std::pair<int, uint64_t>, v1::EngineMessage> replies;  // body case, attempt
  };
  using SessionPtr = std::shared_ptr<Session>;

  void Accept(std::stop_token stop);
  void Serve(SessionPtr session);
  Status Admit(const SessionPtr& session);
  // Its place is free. True: it was dismissed before.
  bool Forget(const SessionPtr& session);
  void Run(const SessionPtr& session);
  // Begins the pull that the engine asks for; its end is sent as an answer.
  Status BeginPull(Session* session, v1::KvPull pull);
  // ... and does it. Stopped when the session ends.
  v1::EngineMessage Pull(uint32_t device, const v1::KvPull& pull, std::stop_token stop);
  void Refuse(Session* session, const Status& status);
  // `descriptors`: that the extents of an EngineMap name.
  Result<v1::EngineMessage> Call(uint32_t device, v1::EngineMessage message,
                                 v1::EngineMessage::BodyCase reply, uint64_t attempt,
                                 std::stop_token stop = {},
                                 std::span<const SharedFd> descriptors = {});
  // The first message, and all descriptors that came until then.
  Result<Frame> FirstOf(Session* session) const;
  void Reap();

  const Options options_;
  Executor* executor_ = nullptr;
  UniqueFd listener_;
  std::jthread acceptor_;
  std::stop_source stopping_;  // what an engine kept is not verified any further

  std::mutex mu_;
  std::condition_variable_any changed_;
  std::map<uint32_t, SessionPtr> by_device_;
  std::map<uint32_t, SessionPtr> dismissed_;  // until their process ends
  std::map<uint32_t, uint64_t> incarnations_;
  struct Worker {
    SessionPtr session;
    std::jthread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::list<Worker> workers_;
};

}  // namespace tangram
