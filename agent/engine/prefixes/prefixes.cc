#include "agent/engine/prefixes/prefixes.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tangram::engine {

static_assert(std::endian::native == std::endian::little, "hashes are told in this order");

uint64_t HashOfSalt(std::string_view salt) { return XXH64(salt.data(), salt.size(), 0); }

uint64_t HashAfter(uint64_t before, std::span<const uint32_t> tokens) {
  std::vector<uint8_t> bytes(sizeof before + tokens.size_bytes());
  std::memcpy(bytes.data(), &before, sizeof before);
  if (!tokens.empty()) {
    std::memcpy(bytes.data() + sizeof before, tokens.data(), tokens.size_bytes());
  }
  return XXH64(bytes.data(), bytes.size(), 0);
}

void PrefixNews::AddTo(v1::Prefixes* out) const {
  out->mutable_here()->Add(here.begin(), here.end());
  out->mutable_gone()->Add(gone.begin(), gone.end());
}

void CachedPrefixes::Here(uint64_t hash) {
  if (here_.size() < kMost && here_.insert(hash).second) Note(hash, true);
}

void CachedPrefixes::Gone(uint64_t hash) {
  if (here_.erase(hash) > 0) Note(hash, false);
}

void CachedPrefixes::Note(uint64_t hash, bool here) {
  if (news_.size() >= kMostNews) news_.clear();
  news_[hash] = here;
}

PrefixNews CachedPrefixes::Take(size_t most, size_t again) {
  PrefixNews out;
  auto it = news_.begin();
  for (; it != news_.end() && most > 0; ++it, --most) {
    (it->second ? out.here : out.gone).push_back(it->first);
  }
  news_.erase(news_.begin(), it);
  auto hash = here_.upper_bound(told_again_);
  for (size_t left = std::min(again, here_.size()); left > 0; --left, ++hash) {
    if (hash == here_.end()) hash = here_.begin();
    told_again_ = *hash;
    // A changed hash is reported with the changes.
    if (!news_.contains(*hash)) out.here.push_back(*hash);
  }
  return out;
}

}  // namespace tangram::engine
