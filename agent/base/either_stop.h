// A stop token that is stopped as soon as one of two others is.
#pragma once

#include <stop_token>
#include <utility>

namespace tangram {

class EitherStop {
 public:
  EitherStop(std::stop_token one, std::stop_token other)
      : one_(std::move(one), Ask{source_}), other_(std::move(other), Ask{source_}) {}
  std::stop_token token() const { return source_.get_token(); }

 private:
  struct Ask {
    std::stop_source source;  // shares the state
    void operator()() { source.request_stop(); }
  };
  const std::stop_source source_;
  const std::stop_callback<Ask> one_, other_;
};

}  // namespace tangram
