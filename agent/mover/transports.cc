#include "agent/mover/transport.h"

namespace tangram::mover {

Transport& Transports::For(const v1::PeerAddress& peer) const {
  for (const auto& transport : all_) {
    if (transport == all_.back()) break;
    {
      const std::scoped_lock lock(mu_);
      if (failed_.contains({transport.get(), peer.data()})) continue;
    }
    if (transport->Reaches(peer)) return *transport;
  }
  return *all_.back();
}

void Transports::Failed(const Transport& transport, const v1::PeerAddress& peer) {
  const std::scoped_lock lock(mu_);
  failed_.emplace(&transport, peer.data());
}

void Transports::EndAttempt() {
  for (const auto& transport : all_) transport->EndAttempt();
  const std::scoped_lock lock(mu_);
  failed_.clear();
}

}  // namespace tangram::mover
