// Who this process is to others of its kind, and whom it believes: TLS 1.3, both sides show a
// certificate of the world's authority, and each looks for the other's role in it
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

// What they hold.
struct TlsTexts {
  std::string ca, cert, key;
};

// Thread-safe. The files are looked at again when a connection begins, at most once a second: a
// renewed certificate or authority holds for connections that begin after it, and touches no
// other. What cannot be read is reported and the last good one stays.
class Credentials {
 public:
  using Context = std::shared_ptr<SSL_CTX>;

  // `role` (agent, engine) is the kind of both sides. kInvalid: a file is missing or is not what
  // it should be, or key and certificate do not belong together.
  static Result<std::shared_ptr<Credentials>> Open(TlsFiles files, const std::string& world,
                                                   const std::string& role);
  // Plain TCP: whoever reaches the port is believed. For fabrics that are closed to others.
  static std::shared_ptr<Credentials> Insecure();

  bool secure() const { return context_ != nullptr; }
  // Of a connection that begins now; null when not secure.
  Context Current();
  // Reads the files again now.
  Status Reload();
  // The DNS name and the beginning of the URI that the other side's certificate must have.
  const std::string& name() const { return name_; }
  const std::string& uri() const { return uri_; }

 private:
  // What tells that a file was replaced: device, inode, size, time of change.
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

// When the certificate in this PEM file ends. kInvalid: there is none.
Result<std::chrono::system_clock::time_point> EndOf(const std::string& cert);

}  // namespace tangram::net
