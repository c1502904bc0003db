// Engines that attach to a rank: new ones, and engines that survived their agent with its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "agent/transition/core.h"
#include "agent/transition/runner.h"

namespace tangram {

class Resumption {
 public:
  Resumption(Core* core, Runner* runner);

  // A new engine. kInvalid: no such device; kWrongPhase: not now.
  Result<Attachment> Attach(uint32_t device);

  // As the executor says (executor.h).
  Result<ShownFds> Resume(uint32_t device, const v1::Resume& resume, KeptFds kept,
                          std::stop_token stop);
  bool Resuming(std::string* why);

 private:
  Status CheckAttach(uint32_t device) const;  // under the core's lock
  Status CheckResume(uint32_t device, const v1::Resume& resume) const;
  Result<std::unique_ptr<RankMemory::Adoption>> Examine(RankMemory* memory,
                                                        const v1::Resume& resume, int32_t* rank,
                                                        KeptFds kept, std::stop_token stop) const;
  void TakeOver(Core::Rank* rank, const v1::Resume& resume, int32_t in_layout,
                std::shared_ptr<const v1::Layout> layout, std::string hash, GatePage* page);

  Core* const core_;
  Runner* const runner_;
  const ExecutorClock::time_point until_;  // end of the wait for engines
};

}  // namespace tangram
