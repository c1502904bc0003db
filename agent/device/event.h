// The end of a device's operation.
#pragma once

#include <memory>
#include <utility>

#include "agent/base/status.h"

namespace tangram::device {

// A handle; its copies refer to the same operation. An event that was never recorded is not done.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool Done() const = 0;
    virtual Status Wait() const = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  // For an operation that has already ended.
  static Event Finished(Status status);

  bool Done() const { return state_ != nullptr && state_->Done(); }
  // Blocks until it is done; returns its result. kInternal: nothing was recorded.
  Status Wait() const;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace tangram::device
