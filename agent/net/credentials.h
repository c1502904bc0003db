// This process's identity among its kind, and the peers that it trusts. TLS 1.3: both sides present
// a certificate of the world's authority, and each checks the other's role in it
// (docs/architecture.md, section 9).
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "agent/base/status.h"

namespace tangram::net {

// Paths of PEM files.
struct TlsFiles {
  std::string ca, cert, key;
};

// Contents of those files.
struct TlsTexts {
  std::string ca, cert, key;
};

// Thread-safe. Files are checked when a connection begins, at most once a second. A renewed
// certificate or authority applies to connections that begin after it, and to no other. Unreadable
// files are reported, and the last valid ones stay.
class Credentials {
 public:
  using Context = std::shared_ptr<SSL_CTX>;

  // `role` (agent, engine) is the kind of both sides. kInvalid: a file is missing or malformed, or
  // key and certificate do not match.
  static Result<std::shared_ptr<Credentials>> Open(TlsFiles files, const std::string& world,
                                                   const std::string& role);
  // Plain TCP: any peer that reaches the port is trusted. For closed fabrics.
  static std::shared_ptr<Credentials> Insecure();

  bool secure() const { return context_ != nullptr; }
  // Context for a connection that begins now; null if not secure.
  Context Current();
  // Reads the files again now.
  Status Reload();
  // The DNS name and the beginning of the URI that the other side's certificate must have.
  const std::string& name() const { return name_; }
  const std::string& uri() const { return uri_; }

 private:
  // Detects that a file was replaced: device, inode, size, time of change.
  using Stamp = std::array<int64_t, 15>;

  Credentials() = default;
  Stamp Look() const;
  Result<Context> Read() const;

  TlsFiles files_;
  std::string name_, uri_;
  std::mutex mu_;
  Context context_;
  Stamp stamp_{};
  std::chrono::steady_clock::time_point looked_{};
};

// Expiry of the certificate in this PEM file. kInvalid: there is none.
Result<std::chrono::system_clock::time_point> EndOf(const std::string& cert);

}  // namespace tangram::net
