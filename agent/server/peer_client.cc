#include "agent/server/peer_client.h"

#include <chrono>
#include <optional>
#include <utility>

#include "agent/base/limits.h"
#include "agent/server/refusal.h"

namespace tangram {
namespace {

// A rejection keeps its code; any other error means that the peer is unreachable.
Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context,
                const std::string& agent) {
  if (status.ok()) return OkStatus();
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto it = trailers.find(kRefusalKey); it != trailers.end()) {
    v1::Refusal refusal;
    if (refusal.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()))) {
      return {CodeOfRefusal(refusal.code()), "agent " + agent + ": " + refusal.message()};
    }
  }
  const bool denied = status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
  return {denied ? Code::kUnauthenticated : Code::kUnavailable,
          "agent " + agent + ": " + status.error_message()};
}

struct Cancel {
  grpc::ClientContext* context;
  void operator()() const { context->TryCancel(); }
};

// An open call: its data until the reply.
template <typename Request, typename Response>
struct Call {
  Call(std::unique_ptr<v1::Peer::Stub> to, Request what, std::stop_token stop)
      : stub(std::move(to)), request(std::move(what)) {
    context.set_deadline(std::chrono::system_clock::now() + limits::kPeerCall);
    cancel.emplace(std::move(stop), Cancel{&context});
  }

  std::unique_ptr<v1::Peer::Stub> stub;
  Request request;
  Response response;
  grpc::ClientContext context;
  std::optional<std::stop_callback<Cancel>> cancel;
};

}  // namespace

PeerClient::PeerClient(const std::string& world,
                       std::shared_ptr<grpc::ChannelCredentials> credentials)
    : name_("agent." + world), credentials_(std::move(credentials)) {}

std::unique_ptr<v1::Peer::Stub> PeerClient::StubOf(const std::string& agent) {
  const std::scoped_lock lock(mu_);
  auto& channel = channels_[agent];
  if (!channel) {
    // Pods get new addresses. A channel that is neither connected nor used by a call is removed,
    // and created again on demand.
    std::erase_if(channels_, [](const auto& one) {
      return one.second && one.second.use_count() == 1 &&
             one.second->GetState(false) != GRPC_CHANNEL_READY;
    });
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(64 << 20);
    // Reconnects to a restarted peer soon, not after gRPC's default of up to 2 minutes.
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // Pods' addresses change and are in no certificate. All agents of a world have this name in
    // theirs, and only the world's authority can issue it.
    args.SetSslTargetNameOverride(name_);
    channel = grpc::CreateCustomChannel(agent, credentials_, args);
  }
  return v1::Peer::NewStub(channel);
}

size_t PeerClient::channels() {
  const std::scoped_lock lock(mu_);
  return channels_.size();
}

void PeerClient::Query(const std::string& agent, const v1::QueryRequest& request,
                       std::stop_token stop, Answered answered) {
  auto call = std::make_shared<Call<v1::QueryRequest, v1::QueryResponse>>(StubOf(agent), request,
                                                                          std::move(stop));
  call->stub->async()->Query(
      &call->context, &call->request, &call->response,
      [call, agent, answered = std::move(answered)](const grpc::Status& status) {
        call->cancel.reset();
        if (Status failed = FromGrpc(status, call->context, agent); !failed.ok()) {
          answered(std::move(failed));
        } else {
          answered(std::move(call->response));
        }
      });
}

void PeerClient::Word(const std::string& agent, const v1::VoteRequest& request,
                      std::stop_token stop, Told told) {
  auto call = std::make_shared<Call<v1::VoteRequest, v1::VoteResponse>>(StubOf(agent), request,
                                                                        std::move(stop));
  call->stub->async()->Vote(&call->context, &call->request, &call->response,
                            [call, agent, told = std::move(told)](const grpc::Status& status) {
                              call->cancel.reset();
                              told(FromGrpc(status, call->context, agent));
                            });
}

Result<v1::OpenPullResponse> PeerClient::OpenPull(const std::string& agent,
                                                  const v1::OpenPullRequest& request,
                                                  const std::stop_token& stop) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       (request.kv() ? limits::kKvOpen : limits::kPeerCall));
  const std::stop_callback cancel(stop, Cancel{&context});
  v1::OpenPullResponse response;
  const grpc::Status status = StubOf(agent)->OpenPull(&context, request, &response);
  if (!status.ok()) return FromGrpc(status, context, agent);
  return response;
}

}  // namespace tangram
