#include "agent/server/services.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>

#include "agent/server/refusal.h"

namespace tangram {
namespace {

constexpr auto kWatchPeriod = std::chrono::milliseconds(100);  // of all changes except phases
constexpr auto kStillHere = std::chrono::seconds(1);           // if nothing changed
constexpr auto kStepLook = std::chrono::milliseconds(5);
constexpr auto kHangUpLook = std::chrono::milliseconds(20);

grpc::StatusCode GrpcCodeOf(Code code) {
  switch (code) {
    case Code::kOk:
      return grpc::StatusCode::OK;
    case Code::kInvalid:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case Code::kUnavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case Code::kCorrupt:
      return grpc::StatusCode::DATA_LOSS;
    case Code::kInternal:
      return grpc::StatusCode::INTERNAL;
    case Code::kUnauthenticated:
      return grpc::StatusCode::PERMISSION_DENIED;
    default:
      return grpc::StatusCode::FAILED_PRECONDITION;
  }
}

grpc::Status ToGrpc(grpc::ServerContext* context, Executor* executor, const char* call,
                    const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Peers constantly request pieces that are not staged yet; other rejections are worth a warning.
  spdlog::log(status.code() == Code::kNotHeld ? spdlog::level::debug : spdlog::level::warn,
              "call rejected call={} error=\"{}\"", call, status.message());
  context->AddTrailingMetadata(kRefusalKey,
                               ToRefusal(status, executor->Current()).SerializeAsString());
  return {GrpcCodeOf(status.code()), status.message()};
}

// Stops a blocking call when its caller disconnects: a driver that died, or no longer waits for an
// unresponsive engine.
class WhileWanted {
 public:
  explicit WhileWanted(grpc::ServerContext* context)
      : look_([this, context](const std::stop_token& over) {
          std::mutex mu;
          std::condition_variable_any sleep;
          std::unique_lock lock(mu);
          while (!over.stop_requested() && !context->IsCancelled()) {
            sleep.wait_for(lock, over, kHangUpLook, [] { return false; });
          }
          if (!over.stop_requested()) stop_.request_stop();
        }) {}
  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  std::jthread look_;
};

// Whether a rank has flipped and not completed a step since.
bool AwaitsStep(const v1::StatusResponse& status) {
  return std::any_of(status.ranks().begin(), status.ranks().end(), [](const v1::RankStatus& rank) {
    return rank.transition().phase() == v1::PHASE_FLIPPED &&
           rank.transition().steps_since_flip() == 0;
  });
}

// The phases that a driver waits for. It permits the first flip of a run and retires the last. The
// agents do the flips in between, many per second; the driver counts these from its regular reads.
class Phases {
 public:
  std::string Of(const v1::StatusResponse& status) {
    std::string out;
    for (const v1::RankStatus& rank : status.ranks()) {
      const v1::TransitionStatus& transition = rank.transition();
      if (transition.run_last() != 0 && transition.run_last() != run_last_) {
        run_last_ = transition.run_last();
        run_first_ = transition.attempt();
      }
      out += fmt::format(" {}:{}:{}", rank.engine().attached(), rank.engine().stopped(),
                         transition.error());
      const bool between = transition.run_last() != 0 && transition.attempt() != run_first_;
      out += between ? fmt::format(" run to {}", run_last_)
                     : fmt::format(" {}:{}:{}:{}", status.epoch(), transition.attempt(),
                                   static_cast<int>(transition.phase()),
                                   transition.steps_since_flip() > 0);
    }
    return out;
  }

 private:
  uint64_t run_first_ = 0, run_last_ = 0;  // of the last seen run
};

// Everything that a watcher acts on, without the serving figures, which change with every step.
std::string NewsOf(v1::WatchResponse response) {
  for (v1::RankStatus& rank : *response.mutable_status()->mutable_ranks()) {
    v1::EngineStatus& engine = *rank.mutable_engine();
    engine.clear_steps();
    engine.clear_running();
    engine.clear_waiting();
    engine.clear_kv_free_pages();
    engine.clear_kv_reserved_tokens();
    v1::TransitionStatus& transition = *rank.mutable_transition();
    transition.set_steps_since_flip(std::min<uint64_t>(transition.steps_since_flip(), 1));
  }
  return response.SerializeAsString();
}

}  // namespace

std::string CallerOf(const grpc::ServerContext& context, const std::string& world) {
  const std::string prefix = "spiffe://tangram/" + world + "/";
  const auto auth = context.auth_context();
  if (!auth || !auth->IsPeerAuthenticated()) return {};
  for (const grpc::string_ref& uri : auth->FindPropertyValues("peer_uri")) {
    const std::string_view text(uri.data(), uri.size());
    if (text.starts_with(prefix)) return std::string(text.substr(prefix.size()));
  }
  return {};
}

grpc::Status AgentService::Allow(const grpc::ServerContext& context) const {
  const std::string caller = CallerOf(context, world_);
  if (caller == "driver") {
    std::string why;
    if (!executor_->Resuming(&why)) return grpc::Status::OK;
    return {grpc::StatusCode::UNAVAILABLE, why};
  }
  return {grpc::StatusCode::PERMISSION_DENIED,
          fmt::format(
              "only spiffe://tangram/{}/driver may call Agent, the caller's certificate names '{}'",
              world_, caller)};
}

grpc::Status AgentService::Answer(grpc::ServerContext* context, const char* call,
                                  const tangram::Status& status) {
  return ToGrpc(context, executor_, call, status);
}

grpc::Status AgentService::CheckWorld(grpc::ServerContext* context, const std::string& world) {
  if (world == world_) return grpc::Status::OK;
  return Answer(
      context, "Status",
      {Code::kWrongWorld,
       fmt::format("this agent serves world '{}', the call is for world '{}'", world_, world)});
}

grpc::Status AgentService::Prepare(grpc::ServerContext* context, const v1::PrepareRequest* request,
                                   v1::PrepareResponse*) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  const WhileWanted wanted(context);
  return Answer(context, "Prepare", executor_->Prepare(*request, wanted.token()));
}

grpc::Status AgentService::Stage(grpc::ServerContext* context, const v1::StageRequest* request,
                                 v1::StageResponse*) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  return Answer(context, "Stage", executor_->Stage(request->header()));
}

grpc::Status AgentService::Permit(grpc::ServerContext* context, const v1::PermitRequest* request,
                                  v1::PermitResponse*) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  return Answer(context, "Permit", executor_->Permit(request->header()));
}

grpc::Status AgentService::Abort(grpc::ServerContext* context, const v1::AbortRequest* request,
                                 v1::AbortResponse* response) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  const WhileWanted wanted(context);
  const auto flipped = executor_->Abort(request->header(), request->reason(), wanted.token());
  if (flipped.ok()) {
    response->set_flipped(*flipped);
    return grpc::Status::OK;
  }
  grpc::Status status = Answer(context, "Abort", flipped.status());
  // The outcome is unknown, but the agent is reachable.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return {grpc::StatusCode::DEADLINE_EXCEEDED, status.error_message()};
  }
  return status;
}

grpc::Status AgentService::Retire(grpc::ServerContext* context, const v1::RetireRequest* request,
                                  v1::RetireResponse*) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  return Answer(context, "Retire", executor_->Retire(request->header()));
}

grpc::Status AgentService::Resolve(grpc::ServerContext* context, const v1::ResolveRequest* request,
                                   v1::ResolveResponse*) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  return Answer(context, "Resolve", executor_->Resolve(*request));
}

grpc::Status AgentService::Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                                   v1::ReleaseResponse*) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  return Answer(context, "Release", executor_->Release(*request));
}

grpc::Status AgentService::Status(grpc::ServerContext* context, const v1::StatusRequest* request,
                                  v1::StatusResponse* response) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  if (grpc::Status world = CheckWorld(context, request->world()); !world.ok()) return world;
  *response = executor_->GetStatus(request);
  return grpc::Status::OK;
}

grpc::Status AgentService::ExpertLoad(grpc::ServerContext* context,
                                      const v1::ExpertLoadRequest* request,
                                      v1::ExpertLoadResponse* response) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  if (grpc::Status world = CheckWorld(context, request->world()); !world.ok()) return world;
  *response = executor_->GetLoad();
  return grpc::Status::OK;
}

grpc::Status AgentService::Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                                 grpc::ServerWriter<v1::WatchResponse>* writer) {
  if (grpc::Status allowed = Allow(*context); !allowed.ok()) return allowed;
  if (grpc::Status world = CheckWorld(context, request->world()); !world.ok()) return world;
  uint64_t seen = 0;
  std::string sent, sent_phases;
  Phases look;
  Executor::Clock::time_point sent_at{};
  while (!context->IsCancelled() && !stopping_) {
    v1::WatchResponse response;
    *response.mutable_status() = executor_->GetStatus(nullptr);
    // Bytes change often; a phase is sent immediately, because the driver waits for it.
    std::string phases = look.Of(response.status());
    const auto now = Executor::Clock::now();
    if (phases != sent_phases || now - sent_at >= kWatchPeriod) {
      std::string news = NewsOf(response);
      if (news != sent || now - sent_at >= kStillHere) {
        if (!writer->Write(response)) break;
        sent = std::move(news);
        sent_phases = std::move(phases);
        sent_at = now;
      }
    }
    // Engines count steps in shared memory, without a notification.
    executor_->WaitChange(&seen, AwaitsStep(response.status()) ? kStepLook : kWatchPeriod);
  }
  return grpc::Status::OK;
}

grpc::Status PeerService::Allow(const grpc::ServerContext& context, std::string* pod) const {
  const std::string caller = CallerOf(context, world_);
  constexpr std::string_view kAgent = "agent/";
  if (!caller.starts_with(kAgent)) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            fmt::format("only spiffe://tangram/{}/agent/<pod> may call Peer, the caller's "
                        "certificate names '{}'",
                        world_, caller)};
  }
  *pod = caller.substr(kAgent.size());
  if (std::string why; executor_->Resuming(&why)) return {grpc::StatusCode::UNAVAILABLE, why};
  return grpc::Status::OK;
}

grpc::Status PeerService::Query(grpc::ServerContext* context, const v1::QueryRequest* request,
                                v1::QueryResponse* response) {
  std::string pod;
  if (grpc::Status allowed = Allow(*context, &pod); !allowed.ok()) return allowed;
  auto result = executor_->Query(*request);
  if (!result.ok()) return ToGrpc(context, executor_, "Query", result.status());
  *response = std::move(*result);
  return grpc::Status::OK;
}

grpc::Status PeerService::Vote(grpc::ServerContext* context, const v1::VoteRequest* request,
                               v1::VoteResponse*) {
  std::string pod;
  if (grpc::Status allowed = Allow(*context, &pod); !allowed.ok()) return allowed;
  return ToGrpc(context, executor_, "Vote", executor_->Word(*request, pod));
}

grpc::Status PeerService::OpenPull(grpc::ServerContext* context, const v1::OpenPullRequest* request,
                                   v1::OpenPullResponse* response) {
  std::string pod;
  if (grpc::Status allowed = Allow(*context, &pod); !allowed.ok()) return allowed;
  auto result = executor_->OpenPull(*request, pod);
  if (!result.ok()) return ToGrpc(context, executor_, "OpenPull", result.status());
  *response = std::move(*result);
  return grpc::Status::OK;
}

}  // namespace tangram
