#include "agent/engine/frontend/hub.h"

#include <spdlog/spdlog.h>

#include <set>

namespace tangram::engine {
namespace {

// Whether every request in the backlog has its last reply there.
bool AllOver(const std::deque<v1::ServeReply>& backlog) {
  std::set<std::string> open;
  for (const v1::ServeReply& reply : backlog) {
    if (!reply.has_token()) continue;
    if (reply.token().finish() == v1::FINISH_UNSPECIFIED) {
      open.insert(reply.token().request());
    } else {
      open.erase(reply.token().request());
    }
  }
  return open.empty();
}

}  // namespace

Hub::Gateway& Hub::Of(const std::string& gateway) {
  return gateways_.try_emplace(gateway, Gateway{nullptr, {}, time_.Now()}).first->second;
}

void Hub::ForgetGone() {
  const auto now = time_.Now();
  std::erase_if(gateways_, [&](const auto& entry) {
    const Gateway& gateway = entry.second;
    return gateway.outlet == nullptr && now - gateway.away >= kForget && AllOver(gateway.backlog);
  });
}

size_t Hub::gateways() {
  std::lock_guard lock(mu_);
  return gateways_.size();
}

void Hub::Open(const std::string& gateway, std::shared_ptr<Outlet> outlet) {
  std::lock_guard lock(mu_);
  Gateway& to = Of(gateway);
  to.outlet = std::move(outlet);
  TellWorld(gateway, to.outlet.get());
  if (load_) to.outlet->Push(*load_);
  for (v1::ServeReply& reply : to.backlog) to.outlet->Push(std::move(reply));
  to.backlog.clear();
}

void Hub::Close(const std::string& gateway, Outlet* outlet) {
  std::lock_guard lock(mu_);
  Gateway& from = Of(gateway);
  if (from.outlet.get() == outlet) {
    from.outlet.reset();
    from.away = time_.Now();
  }
  for (v1::ServeReply& reply : outlet->TakeUnsent()) {
    if (!reply.has_token() && !reply.has_refused()) continue;  // a new session gets the newest
    if (from.outlet != nullptr) {
      from.outlet->Push(std::move(reply));
    } else {
      Keep(gateway, from, std::move(reply));
    }
  }
}

void Hub::GiveUp(const std::string& gateway, const std::deque<v1::ServeReply>& unsent) {
  CancelAll(gateway, unsent, &Of(gateway).backlog);
}

// Leaves replies for the gateway's next session: these requests were cancelled.
void Hub::CancelAll(const std::string& gateway, const std::deque<v1::ServeReply>& replies,
                    std::deque<v1::ServeReply>* instead) {
  std::set<std::string> requests;
  for (const v1::ServeReply& reply : replies) {
    if (reply.has_token()) requests.insert(reply.token().request());
  }
  spdlog::error(
      "gateway unresponsive, its requests are cancelled gateway={} replies_dropped={} "
      "requests_cancelled={}",
      gateway, replies.size(), requests.size());
  for (const std::string& request : requests) {
    inbox_->Put(CancelItem{request});
    v1::Token* token = instead->emplace_back().mutable_token();
    token->set_request(request);
    token->set_owner(self_);
    token->set_finish(v1::FINISH_CANCELLED);
  }
}

void Hub::Keep(const std::string& name, Gateway& gateway, v1::ServeReply reply) {
  gateway.backlog.push_back(std::move(reply));
  if (gateway.backlog.size() <= max_backlog_) return;
  std::deque<v1::ServeReply> told;
  CancelAll(name, gateway.backlog, &told);
  gateway.backlog = std::move(told);
}

void Hub::Send(const std::string& gateway, v1::ServeReply reply) {
  std::lock_guard lock(mu_);
  Gateway& to = Of(gateway);
  if (to.outlet != nullptr) {
    to.outlet->Push(std::move(reply));
  } else {
    Keep(gateway, to, std::move(reply));
  }
}

void Hub::Emit(const std::string& gateway, v1::Token token) {
  v1::ServeReply reply;
  *reply.mutable_token() = std::move(token);
  Send(gateway, std::move(reply));
}

void Hub::Refuse(const std::string& gateway, v1::Refused refused) {
  v1::ServeReply reply;
  *reply.mutable_refused() = std::move(refused);
  Send(gateway, std::move(reply));
}

void Hub::TellWorld(const std::string& gateway, Outlet* outlet) {
  if (!world_) return;
  outlet->Push(*world_);
  v1::ServeReply reply;
  if (const auto it = rosters_.find(gateway); it != rosters_.end()) {
    *reply.mutable_roster() = it->second;
  }
  reply.mutable_roster()->set_epoch(world_->world().epoch());
  reply.mutable_roster()->set_member(self_);
  outlet->Push(std::move(reply));
}

void Hub::SetWorld(v1::World world, const std::string& self,
                   std::map<std::string, v1::Roster> rosters) {
  std::lock_guard lock(mu_);
  self_ = self;
  world_.emplace();
  *world_->mutable_world() = std::move(world);
  rosters_ = std::move(rosters);
  for (auto& [name, gateway] : gateways_) {
    if (gateway.outlet) TellWorld(name, gateway.outlet.get());
  }
}

void Hub::SetLoad(v1::Load load) {
  std::lock_guard lock(mu_);
  load_.emplace();
  *load_->mutable_load() = std::move(load);
  ForgetGone();
  for (auto& [name, gateway] : gateways_) {
    if (gateway.outlet) gateway.outlet->Push(*load_);
  }
}

}  // namespace tangram::engine
