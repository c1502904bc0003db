#include "agent/mover/grants.h"

#include <openssl/rand.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <utility>

namespace tangram::mover {
namespace {

// Without randomness tokens could be guessed, so no sensible continuation exists.
void Random(std::span<uint8_t> out) {
  if (RAND_bytes(out.data(), static_cast<int>(out.size())) != 1) std::abort();
}

}  // namespace

Window::Window(device::Readable memory) : memory_(std::move(memory)) { Random(id_); }

Result<std::shared_ptr<const Window>> Window::Of(const device::Device& device) {
  auto memory = device.ForReading();
  if (!memory.ok()) return memory.status();
  return std::shared_ptr<const Window>(new Window(std::move(memory).value()));
}

std::vector<uint64_t> Shown::Numbers() const {
  const uint64_t unit = window->memory().unit;
  std::vector<uint64_t> out;
  for (const device::Extent& extent : extents) {
    const uint64_t end = extent.offset + extent.length;
    for (uint64_t n = extent.offset / unit; n * unit < end; ++n) out.push_back(n);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string Grants::Issue(Grant grant) {
  std::string token(16, '\0');
  Random({reinterpret_cast<uint8_t*>(token.data()), token.size()});
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
