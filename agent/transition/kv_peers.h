// Whom a rank connects to before a flip, because it will most likely need their KV.
#pragma once

#include <string>
#include <vector>

#include "agent/layout/layout.h"
#include "tangram/v1/engine.pb.h"

namespace tangram {

// Those of `peers` whose KV the member needs at the flip from one layout to the other, as far as
// layouts tell (kv::LikelySources). Both are valid.
std::vector<v1::PeerAddress> KvPeers(const v1::Geometry& geometry, const v1::Layout& before,
                                     const v1::Layout& target, const std::string& member,
                                     const std::vector<v1::PeerAddress>& peers);

}  // namespace tangram
