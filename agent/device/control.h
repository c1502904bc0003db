// A rank's control memory. It is the host's on every platform, since agent and engine both write
// it.
#pragma once

#include <memory>
#include <string>

#include "agent/device/platform.h"

namespace tangram::device {

// Moves a new device into a place of RankDevices, or returns the error.
template <typename Made>
Status Put(Result<Made> made, std::unique_ptr<Device>* to) {
  if (!made.ok()) return made.status();
  *to = std::move(made).value();
  return OkStatus();
}

Status MakeControl(const std::string& rank, uint64_t bytes, RankDevices* to);
// From memory that an engine kept.
Status AdoptControl(const std::string& rank, uint64_t bytes, std::span<const int> descriptors,
                    RankDevices* to);
std::unique_ptr<Device> ControlImporter();

}  // namespace tangram::device
