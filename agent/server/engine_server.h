// The UNIX socket on which engines attach: authentication, one engine per device, and the
// executor's calls to them.
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
    std::string path;   // of the socket; replaces the socket of a dead agent
    std::string token;  // that an engine must present
    v1::SlabFormat slab_format = v1::SLAB_FORMAT_GRANULE_MAJOR;  // that it must accept
    std::chrono::milliseconds reply_timeout = limits::kEngineReply;
    std::chrono::milliseconds attach_timeout{5'000};
  };

  explicit EngineServer(Options options) : options_(std::move(options)) {}
  ~EngineServer() override;

  // Listens and admits engines for `executor` until Stop.
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
  // One connection. Only the thread that serves it receives.
  struct Session {
    explicit Session(UniqueFd socket) : channel(std::move(socket)) {}
    // Sends a message whose extents name descriptors by their index in `descriptors`.
    Status Send(v1::EngineMessage message, std::span<const SharedFd> descriptors);

    FrameChannel channel;
    std::mutex book_mu;
    DescriptorBook book;
    EngineInfo info;
    uint32_t device = 0;
    // The pull in progress, for which the engine waits. It has its own thread, so that the
    // receiving thread notices the engine's end. Only the receiving thread uses this.
    std::jthread pull;
    std::atomic<bool> pulling{false};
    // Guarded by EngineServer::mu_:
    bool ready = false;  // Attached has been sent
    bool gone = false;
    bool dismissed = false;  // its process may still live, with the rank's memory mapped
    std::map<std::pair<int, uint64_t>, v1::EngineMessage> replies;  // body case, attempt
  };
  using SessionPtr = std::shared_ptr<Session>;

  void Accept(std::stop_token stop);
  void Serve(SessionPtr session);
  Status Admit(const SessionPtr& session);
  // Frees its place. True: it was evicted before.
  bool Forget(const SessionPtr& session);
  void Run(const SessionPtr& session);
  // Starts the pull that the engine requests; the result is sent as a reply.
  Status BeginPull(Session* session, v1::KvPull pull);
  // Does the pull. Stopped when the session ends.
  v1::EngineMessage Pull(uint32_t device, const v1::KvPull& pull, std::stop_token stop);
  void Refuse(Session* session, const Status& status);
  // `descriptors`: those that the extents of an EngineMap name.
  Result<v1::EngineMessage> Call(uint32_t device, v1::EngineMessage message,
                                 v1::EngineMessage::BodyCase reply, uint64_t attempt,
                                 std::stop_token stop = {},
                                 std::span<const SharedFd> descriptors = {});
  // The first message, and all descriptors received until then.
  Result<Frame> FirstOf(Session* session) const;
  void Reap();

  const Options options_;
  Executor* executor_ = nullptr;
  UniqueFd listener_;
  std::jthread acceptor_;
  std::stop_source stopping_;  // stops the verification of retained memory

  std::mutex mu_;
  std::condition_variable_any changed_;
  std::map<uint32_t, SessionPtr> by_device_;
  std::map<uint32_t, SessionPtr> dismissed_;  // until their process has ended
  std::map<uint32_t, uint64_t> incarnations_;
  struct Worker {
    SessionPtr session;
    std::jthread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::list<Worker> workers_;
};

}  // namespace tangram
