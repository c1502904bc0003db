// Requests that engines reject.
#include "agent/engine/turn/asked.h"

#include <gtest/gtest.h>

namespace tangram::engine {
namespace {

v1::Submit Greedy() {
  v1::Submit out;
  out.set_request("r");
  for (const uint32_t token : {1, 2, 3}) out.add_prompt(token);
  out.set_max_tokens(8);
  out.set_top_p(0.5f);
  out.set_seed(7);
  out.add_stop_tokens(9);
  out.set_cache_salt("s");
  return out;
}

TEST(WhatIsNotServed, NamesUnsupportedFields) {
  v1::Submit submit = Greedy();
  EXPECT_EQ(WhatIsNotServed(submit, {}), "");
  submit.set_top_k(5);
  EXPECT_EQ(WhatIsNotServed(submit, {}), "top_k: this engine does not support it");
  EXPECT_EQ(WhatIsNotServed(submit, {"min_tokens", "top_k"}), "");
  (*submit.mutable_logit_bias())[4] = -1;
  EXPECT_EQ(WhatIsNotServed(submit, {"min_tokens", "top_k"}),
            "logit_bias: this engine does not support it");
}

TEST(WhatIsNotServed, ReportsMoreGeneratedTokensThanAllowed) {
  v1::Submit submit = Greedy();
  submit.set_generated(2);
  EXPECT_EQ(WhatIsNotServed(submit, {}), "");
  submit.set_generated(3);
  EXPECT_EQ(WhatIsNotServed(submit, {}),
            "generated: 3 tokens of a prompt of 3, for an answer of at most 8");
  submit.set_generated(2);
  submit.set_max_tokens(2);
  EXPECT_EQ(WhatIsNotServed(submit, {}),
            "generated: 2 tokens of a prompt of 3, for an answer of at most 2");
}

}  // namespace
}  // namespace tangram::engine
