#include "agent/engine/frontend/session.h"

namespace tangram::engine {

std::shared_ptr<Session> Session::Start(std::string world, std::string peer, Hub* hub,
                                        Inbox* inbox) {
  std::shared_ptr<Session> session(new Session(std::move(world), std::move(peer), hub, inbox));
  session->self_ = session;
  session->StartRead(&session->request_);
  return session;
}

void Session::Push(v1::ServeReply reply) {
  std::lock_guard lock(mu_);
  if (overflowed_) return;
  if (queue_.size() >= kMaxQueue) {
    overflowed_ = true;
    hub_->GiveUp(gateway_, queue_);
    return;
  }
  queue_.push_back(std::move(reply));
  if (writing_ || ended_) return;
  writing_ = true;
  StartWrite(&queue_.front());
}

void Session::OnWriteDone(bool ok) {
  std::lock_guard lock(mu_);
  writing_ = false;
  // A failed write may or may not have arrived: the reply stays, and is sent again.
  if (!ok || ended_) return;
  queue_.pop_front();
  if (queue_.empty()) return;
  writing_ = true;
  StartWrite(&queue_.front());
}

grpc::Status Session::OnHello(const v1::Hello& hello) {
  if (!gateway_.empty()) return {grpc::StatusCode::INVALID_ARGUMENT, "more than one hello"};
  if (world_.empty()) {
    return {grpc::StatusCode::UNAVAILABLE, "the engine is not attached to an agent yet"};
  }
  if (hello.world() != world_) {
    return {grpc::StatusCode::FAILED_PRECONDITION, "hello for world \"" + hello.world() +
                                                       "\", but this engine is of world \"" +
                                                       world_ + "\""};
  }
  if (const std::string expected = "spiffe://tangram/" + world_ + "/gateway"; peer_ != expected) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            "only " + expected + " may open a session, the caller's certificate names \"" + peer_ +
                "\""};
  }
  if (hello.gateway().empty()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "hello has no gateway name"};
  }
  gateway_ = hello.gateway();
  hub_->Open(gateway_, self_);
  return grpc::Status::OK;
}

void Session::OnSubmit(v1::Submit submit) {
  v1::Refused refused;
  refused.set_request(submit.request());
  if (inbox_->Put(SubmitItem{gateway_, std::move(submit)})) return;
  refused.set_code(v1::Refused::CODE_BUSY);
  refused.set_message("the queue of new requests of this rank is full; try another rank");
  hub_->Refuse(gateway_, std::move(refused));
}

void Session::OnReadDone(bool ok) {
  if (!ok) {
    End(grpc::Status::OK);  // the gateway has closed the stream, or is gone
    return;
  }
  grpc::Status status;
  switch (request_.body_case()) {
    case v1::ServeRequest::kHello:
      status = OnHello(request_.hello());
      break;
    case v1::ServeRequest::kSubmit:
    case v1::ServeRequest::kCancel:
      if (gateway_.empty()) {
        status = {grpc::StatusCode::FAILED_PRECONDITION, "the first message must be a hello"};
      } else if (request_.has_submit()) {
        OnSubmit(std::move(*request_.mutable_submit()));
      } else {
        inbox_->Put(CancelItem{request_.cancel().request()});
      }
      break;
    case v1::ServeRequest::BODY_NOT_SET:
      status = {grpc::StatusCode::INVALID_ARGUMENT, "empty message"};
      break;
  }
  if (!status.ok()) {
    End(status);
    return;
  }
  request_.Clear();
  StartRead(&request_);
}

void Session::End(const grpc::Status& status) {
  {
    std::lock_guard lock(mu_);
    if (ended_) return;
    ended_ = true;
  }
  Finish(status);
}

std::deque<v1::ServeReply> Session::TakeUnsent() {
  std::lock_guard lock(mu_);
  std::deque<v1::ServeReply> unsent = std::move(queue_);
  queue_.clear();
  if (overflowed_) unsent.clear();
  return unsent;
}

void Session::OnDone() {
  // No operation is in flight now.
  if (!gateway_.empty()) hub_->Close(gateway_, this);
  self_.reset();
}

}  // namespace tangram::engine
