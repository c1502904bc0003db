// tangram-traffic: counts what a GPU would move for a list of moves between slabs (traffic.h). One
// JSON object on stdin:
//   {"planes": [[lines, bytes], ...], "interleaved": bool,
//    "moves": [[to_units, to_first, from_units, from_first, count], ...]}
// and on stdout an array with an object for each move: "ranges", "range_bytes", and for each kernel
// launch {"loads", "stores"}, of each {"requests", "bytes", "sectors", "full"}.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "agent/device/traffic.h"

namespace tangram::device {
namespace {

nlohmann::json Json(const kernels::Traffic& t) {
  return {{"requests", t.requests}, {"bytes", t.bytes}, {"sectors", t.sectors}, {"full", t.full}};
}
nlohmann::json Json(const kernels::Traffics& t) {
  return {{"loads", Json(t.loads)}, {"stores", Json(t.stores)}};
}

int Main() {
  const nlohmann::json asked = nlohmann::json::parse(std::cin);
  Shape slab;
  for (const auto& plane : asked.at("planes")) {
    slab.planes.push_back({plane.at(0).get<uint64_t>(), plane.at(1).get<uint64_t>()});
  }
  nlohmann::json out = nlohmann::json::array();
  for (const auto& move : asked.at("moves")) {
    const auto n = [&](size_t i) { return move.at(i).get<uint64_t>(); };
    const auto found =
        CountMove({n(0), n(1), n(2), n(3), n(4)}, slab, asked.at("interleaved").get<bool>());
    if (!found.ok()) {
      std::cerr << "tangram-traffic: move " << out.size() << ": " << found.status().message()
                << "\n";
      return 1;
    }
    out.push_back({{"ranges", found->ranges},
                   {"range_bytes", found->range_bytes},
                   {"strips", Json(found->strips)},
                   {"alone", Json(found->alone)},
                   {"gather", Json(found->gather)},
                   {"hash_sums", Json(found->sums)},
                   {"hash_chain", Json(found->chain)}});
  }
  std::cout << out.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace tangram::device

int main() {
  try {
    return tangram::device::Main();
  } catch (const nlohmann::json::exception& e) {
    std::cerr << "tangram-traffic: stdin: " << e.what() << "\n";
    return 1;
  }
}
