// The driver's reads and writes of the records: they take time, and a reply may be lost.
#pragma once

#include "agent/simulation/driver.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {

template <typename Value>
Record<Value> Driver::Load(const Record<Value>& record) {
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  return record;
}

template <typename Value>
bool Driver::Save(Record<Value>* record, uint64_t version, const Value& next) {
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  if (world_->Fails(60)) return false;  // the request was lost
  if (record->version != version) return false;
  record->value = next;
  ++record->version;
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  return !world_->Fails(60);
}

}  // namespace tangram::simulation
