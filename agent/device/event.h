// The end of an operation that a device was given.
#pragma once

#include <memory>
#include <utility>

#include "agent/base/status.h"

namespace tangram::device {

// A handle; copies tell of the same operation. One that was never recorded is not done.
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
  // Of an operation that was over when it returned.
  static Event Finished(Status status);

  bool Done() const { return state_ != nullptr && state_->Done(); }
  // Blocks until it is done, and says how it ended. kInternal: nothing was recorded.
  Status Wait() const;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace tangram::device
