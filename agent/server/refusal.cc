#include "agent/server/refusal.h"

#include <array>
#include <utility>

#include "agent/base/utf8.h"

namespace tangram {
namespace {

constexpr std::array<std::pair<Code, v1::Refusal::Code>, 10> kPairs{{
    {Code::kWrongWorld, v1::Refusal::CODE_WRONG_WORLD},
    {Code::kStaleEpoch, v1::Refusal::CODE_STALE_EPOCH},
    {Code::kStaleAttempt, v1::Refusal::CODE_STALE_ATTEMPT},
    {Code::kBadPlan, v1::Refusal::CODE_BAD_PLAN},
    {Code::kNoMemory, v1::Refusal::CODE_NO_MEMORY},
    {Code::kBadGeometry, v1::Refusal::CODE_BAD_GEOMETRY},
    {Code::kEngine, v1::Refusal::CODE_ENGINE},
    {Code::kWrongPhase, v1::Refusal::CODE_WRONG_PHASE},
    {Code::kNotHeld, v1::Refusal::CODE_NOT_HELD},
    {Code::kUnauthenticated, v1::Refusal::CODE_UNAUTHENTICATED},
}};

}  // namespace

v1::Refusal::Code RefusalCodeOf(Code code) {
  for (const auto& [local, wire] : kPairs) {
    if (local == code) return wire;
  }
  return v1::Refusal::CODE_UNSPECIFIED;
}

Code CodeOfRefusal(v1::Refusal::Code code) {
  for (const auto& [local, wire] : kPairs) {
    if (wire == code) return local;
  }
  return Code::kInternal;
}

v1::Refusal ToRefusal(const Status& status, const v1::Header& current) {
  v1::Refusal refusal;
  refusal.set_code(RefusalCodeOf(status.code()));
  refusal.set_message(ValidUtf8(status.message()));  // else the driver cannot parse the reply
  *refusal.mutable_current() = current;
  return refusal;
}

}  // namespace tangram
