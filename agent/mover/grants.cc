#include "agent/mover/grants.h"

#include <openssl/rand.h>

#include <cstdlib>

namespace tangram::mover {

std::string Grants::Issue(Grant grant) {
  std::string token(16, '\0');
  // Without randomness a token would be a guess away; there is nothing sensible to go on with.
  if (RAND_bytes(reinterpret_cast<unsigned char*>(token.data()), static_cast<int>(token.size())) !=
      1)
    std::abort();
  const std::scoped_lock lock(mu_);
  grants_.emplace(token, std::move(grant));
  return token;
}

std::optional<Grant> Grants::Redeem(const std::string& token,
                                    const std::optional<std::string>& pod) {
  const std::scoped_lock lock(mu_);
  const auto it = grants_.find(token);
  if (it == grants_.end() || (pod && *pod != it->second.pod)) return std::nullopt;
  return std::move(grants_.extract(it).mapped());
}

void Grants::Revoke(const void* owner) {
  const std::scoped_lock lock(mu_);
  std::erase_if(grants_, [&](const auto& entry) { return entry.second.owner == owner; });
}

size_t Grants::open() const {
  const std::scoped_lock lock(mu_);
  return grants_.size();
}

}  // namespace tangram::mover
