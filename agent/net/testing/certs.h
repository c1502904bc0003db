// A certificate authority for tests.
#pragma once

#include <memory>
#include <string>

#include "agent/net/credentials.h"

namespace tangram::net::testing {

class TestCa {
 public:
  TestCa();
  ~TestCa();
  // Key and certificate with URI SAN `uri` (spiffe://tangram/<world>/<kind>[/<pod>]) and the DNS
  // SAN <kind>.<world>, signed by this CA.
  TlsTexts Issue(const std::string& uri) const;
  // The same as files in `dir`, named after `name`.
  TlsFiles Write(const std::string& uri, const std::string& dir, const std::string& name) const;
  // Credentials of a pod, from files that are removed again (they are never renewed).
  std::shared_ptr<Credentials> Open(const std::string& world, const std::string& role,
                                    const std::string& pod) const;

 private:
  struct Keys;
  std::unique_ptr<Keys> keys_;
};

}  // namespace tangram::net::testing
