// One-time tokens: what a peer that asked over mTLS may read over the bulk connection.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tangram::mover {

// Memory that a token opens. Pieces are sent at once, in order; a KV region is read range
// by range until the connection ends.
struct Grant {
  std::vector<std::span<const std::byte>> pieces;
  std::span<const std::byte> kv;  // empty: no KV
  uint64_t attempt = 0;
  const void* owner = nullptr;  // whose memory it is, for Revoke
};

// Thread-safe.
class Grants {
 public:
  // 16 random bytes.
  std::string Issue(Grant grant);
  // Takes the token's grant; a second time there is none.
  std::optional<Grant> Redeem(const std::string& token);
  // Drops what is left of an owner's tokens (its attempt has ended).
  void Revoke(const void* owner);
  size_t open() const;

 private:
  mutable std::mutex mu_;
  std::map<std::string, Grant> grants_;
};

}  // namespace tangram::mover
