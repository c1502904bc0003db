// Makes bytes come: ranges that a job wants, from sources that have them. Knows neither what the
// ranges are nor how a source brings them; what it decides is who is asked for what, when, and who
// is asked instead when one fails or lies.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/memory.h"

namespace tangram::mover {

// What is asked for, and arrives, as a whole.
struct Range {
  std::vector<device::Memory> units;  // where it goes, in order; each is hashed by itself
  std::vector<uint32_t> sources;      // of the job, in the order in which they are asked
  uint64_t bytes() const;
};

// Where bytes come from.
class Source {
 public:
  // A range is there and verified; its units' hashes, in order.
  using Arrived = std::function<void(size_t range, std::vector<uint64_t> hashes)>;

  virtual ~Source() = default;
  virtual std::string name() const = 0;  // for messages
  // How many calls may bring from it at the same time.
  virtual size_t lanes() const { return 1; }
  // Brings ranges of the job, by index, and tells of each at once. What had arrived when it fails
  // stays. kNotHeld: not yet, it is to be asked again, or the next, if another had failed before;
  // kUnavailable, kCorrupt: another source may do; anything else ends the job.
  virtual Status Bring(std::span<const Range> job, std::span<const size_t> wanted,
                       const Arrived& arrived, const std::stop_token& stop) = 0;
};

struct Limits {
  size_t workers = 2;  // calls at the same time
  // At most, in one call, unless one range is longer: a call costs both sides a token over gRPC.
  uint64_t batch_bytes = 256 << 20;
  // Of a source, after which it is not asked again by this job. Calls that were under way when one
  // failed fail with it.
  int failures = 2;
  std::chrono::milliseconds ask_again{20};
  // A source that failed is left alone so long: more than gRPC takes to connect once more (100 ms),
  // until when whatever is asked fails for the same reason.
  std::chrono::milliseconds after_failure{200};
  // Of its time that a worker may be at work; it sleeps the rest (pacer.h). None: all of it.
  std::function<double()> share;
  bool yields = true;  // workers take what time serving leaves; not where serving waits for them
};

// A range is there; who brought it.
using Came =
    std::function<void(const Source& source, size_t range, const std::vector<uint64_t>& hashes)>;

// Brings all ranges, each once. Sources that come first are asked first, so what others wait for,
// and what is near, should. Blocks; `came` is called by the workers, `failed` for each failed
// call. An error is of the first range that nobody could bring, and says what every source of it
// said; `stop` ends it with kUnavailable.
Status Bring(std::span<const Range> job, std::span<Source* const> sources, const Limits& limits,
             const Came& came, const std::function<void(const Source&, const Status&)>& failed,
             std::stop_token stop);

}  // namespace tangram::mover
