// Errors as C callers receive them.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "agent/client/abi.h"

namespace tangram::abi {
namespace {

TEST(Errors, TruncateMessageAtCharacterBoundary) {
  tg_error error = TG_INIT(tg_error);
  const size_t room = sizeof error.message - 1;
  Fail(&error, TG_REFUSED, (std::string(room - 1, 'x') + "\u20ac").c_str());
  EXPECT_EQ(error.message, std::string(room - 1, 'x'));
  Fail(&error, TG_REFUSED, (std::string(room - 3, 'x') + "\u20ac\u20ac").c_str());
  EXPECT_EQ(error.message, std::string(room - 3, 'x') + "\u20ac");

  error.struct_size = offsetof(tg_error, message) + 3;  // a caller with room for two bytes
  Fail(&error, TG_REFUSED, "a\u00e4");
  EXPECT_STREQ(error.message, "a");
}

}  // namespace
}  // namespace tangram::abi
