// A certificate authority for tests.
#pragma once

#include <memory>
#include <string>

#include "agent/server/peer_client.h"

namespace tangram::testing {

class TestCa {
 public:
  TestCa();
  ~TestCa();
  // Key and certificate with URI SAN `uri` and IP SAN 127.0.0.1, signed by this CA.
  TlsTexts Issue(const std::string& uri) const;
  // The same as files in `dir`, named after `name`.
  TlsFiles Write(const std::string& uri, const std::string& dir, const std::string& name) const;

 private:
  struct Keys;
  std::unique_ptr<Keys> keys_;
};

}  // namespace tangram::testing
