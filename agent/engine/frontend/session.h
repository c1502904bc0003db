// One gateway's stream. gRPC callback API: nothing here blocks.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "agent/engine/frontend/hub.h"
#include "tangram/v1/serve.grpc.pb.h"

namespace tangram::engine {

class Session final : public grpc::ServerBidiReactor<v1::ServeRequest, v1::ServeReply>,
                      public Outlet {
 public:
  // `world` empty: not attached to an agent yet, every hello gets UNAVAILABLE. `peer`: URI of the
  // client's certificate. Keeps itself alive until OnDone.
  static std::shared_ptr<Session> Start(std::string world, std::string peer, Hub* hub,
                                        Inbox* inbox);

  void Push(v1::ServeReply reply) override;
  std::deque<v1::ServeReply> TakeUnsent() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnCancel() override { End(grpc::Status::CANCELLED); }

 private:
  // Replies that wait for a slow gateway.
  static constexpr size_t kMaxQueue = 65536;

  Session(std::string world, std::string peer, Hub* hub, Inbox* inbox)
      : world_(std::move(world)), peer_(std::move(peer)), hub_(hub), inbox_(inbox) {}
  grpc::Status OnHello(const v1::Hello& hello);
  void OnSubmit(v1::Submit submit);
  void End(const grpc::Status& status);

  const std::string world_, peer_;
  Hub* const hub_;
  Inbox* const inbox_;
  std::shared_ptr<Session> self_;
  std::string gateway_;  // set by the hello; reads come one after another
  v1::ServeRequest request_;

  std::mutex mu_;
  std::deque<v1::ServeReply> queue_;  // the front one is being written
  bool writing_ = false, ended_ = false, overflowed_ = false;
};

}  // namespace tangram::engine
