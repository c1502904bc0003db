#include "agent/device/event.h"

namespace tangram::device {
namespace {

class Over final : public Event::State {
 public:
  explicit Over(Status status) : status_(std::move(status)) {}
  bool Done() const override { return true; }
  Status Wait() const override { return status_; }

 private:
  const Status status_;
};

}  // namespace

Event Event::Finished(Status status) {
  return Event(std::make_shared<const Over>(std::move(status)));
}

Status Event::Wait() const {
  if (state_ == nullptr) return {Code::kInternal, "wait for an event that was not recorded"};
  return state_->Wait();
}

}  // namespace tangram::device
