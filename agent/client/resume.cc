// The library after its agent died. It continues to serve, tries to reconnect, and hands its state
// to the next agent (docs/architecture.md, section 8, "An agent dies alone").
#include <vector>

#include "agent/client/client.h"
#include "agent/client/connect.h"

namespace tangram {
namespace {

constexpr auto kKnock = std::chrono::milliseconds(100);
// It hashes all weights again, even on a slow machine.
constexpr auto kAnswer = std::chrono::seconds(60);
constexpr uint64_t kHashedInASecond = 256 << 20;

void Tell(const Region::Run& run, Extents* to) {
  v1::Extent* extent = to->Add();
  extent->set_fd_index(run.descriptor);
  extent->set_offset(run.offset);
  extent->set_length(run.bytes);
}

}  // namespace

v1::Resume Client::ResumeNow() const {
  v1::Resume out;
  out.set_member(member_);
  for (const Region::Run& run : weights_.runs()) {
    v1::Mapping* mapping = out.add_mappings();
    mapping->set_dense(run.place >= dense_offset_);
    if (mapping->dense()) {
      mapping->set_offset(run.place - dense_offset_);
    } else {
      mapping->set_bank(static_cast<uint32_t>(run.place / geometry_->bank_pitch()));
      mapping->set_offset(run.place % geometry_->bank_pitch());
    }
    Tell(run, mapping->mutable_extents());
  }
  for (const Region::Run& run : kv_.runs()) Tell(run, out.mutable_kv());
  for (const Region::Run& run : control_.runs()) Tell(run, out.mutable_control());
  if (!current_ || current_->get()->rank < 0) return out;
  *out.mutable_layout() = current_->layout();
  for (uint32_t r = 0; r < current_->get()->world_size; ++r) {
    v1::PeerAddress* peer = out.add_peers();
    peer->set_rank(r);
    peer->set_member(current_->get()->members[r]);
    peer->set_engine(current_->get()->mesh[r]);
    peer->set_frontend(current_->get()->frontends[r]);
  }
  return out;
}

Status Client::Knock() {
  const auto now = std::chrono::steady_clock::now();
  if (!knocking_) {
    // The message to the new agent must match the mappings at that time.
    if (now < knock_at_ || !reader_->ended() || !mapper_.idle()) return lost_;
    knock_at_ = now + kKnock;
    auto socket = ConnectTo(socket_path_);
    if (!socket.ok()) return lost_;
    knocking_ = std::make_unique<FrameChannel>(std::move(*socket));
    v1::EngineMessage message = AttachMessage();
    *message.mutable_attach()->mutable_resume() = ResumeNow();
    const uint64_t bytes = weights_.mapped_bytes();
    std::vector<PassedFd> fds;
    for (const auto& [number, descriptor] : descriptors_.all()) {
      fds.push_back({number, descriptor.fd.get()});
    }
    if (knocking_->Send(std::move(message), fds).ok()) {
      knock_at_ = now + kAnswer + std::chrono::seconds(bytes / kHashedInASecond);
    } else {
      knocking_.reset();  // the dead agent had taken the connection
    }
    return lost_;
  }
  auto frame = knocking_->Receive(0);
  if (frame.ok() && !frame->has_value() && now < knock_at_) return lost_;
  if (!frame.ok() || !frame->has_value()) {
    knocking_.reset();
    knock_at_ = now + kKnock;
    return lost_;
  }
  const v1::EngineMessage& reply = (*frame)->message;
  if (reply.has_refused()) {
    const v1::Refusal& refusal = reply.refused().refusal();
    knocking_.reset();
    knock_at_ = now + kKnock;
    if (CodeOf(refusal.code()) == Code::kWrongPhase) return lost_;
    lost_ = {Code::kEngine, "the new agent rejected this engine: " + refusal.message()};
    return lost_;
  }
  // Without a reader thread, this connection cannot be used either.
  if (const Status reads = ReadFrom(std::move(knocking_)); !reads.ok()) return lost_ = reads;
  knock_at_ = now;  // this agent may die soon, too
  if (kv_staging_) {
    staged_.emplace().set_message("the agent died");
  }
  queue_.clear();
  lost_ = OkStatus();
  return OkStatus();
}

void Client::EndAttempt(tg_event* event) {
  if (!attempt_) return;
  event->kind = TG_EVENT_ABORT;
  event->attempt = attempt_->id;
  event->target_epoch = attempt_->target->get()->epoch;
  UnmapAll(attempt_->mapped);
  Forget();
}

}  // namespace tangram
