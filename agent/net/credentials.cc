#include "agent/net/credentials.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <ctime>

namespace tangram::net {
namespace {

constexpr auto kLookAgain = std::chrono::seconds(1);
// Limits the bytes that an unauthenticated peer may send: chains here have one certificate.
constexpr long kMostChainBytes = 16 << 10;

Status Refuse(const std::string& what, const std::string& path) {
  const unsigned long error = ERR_get_error();
  const char* why = error == 0 ? "not found in the file" : ERR_reason_error_string(error);
  return {Code::kInvalid,
          fmt::format("{} '{}': {}", what, path, why == nullptr ? "unusable" : why)};
}

}  // namespace

Result<std::shared_ptr<Credentials>> Credentials::Open(TlsFiles files, const std::string& world,
                                                       const std::string& role) {
  std::shared_ptr<Credentials> out(new Credentials);
  out->files_ = std::move(files);
  out->name_ = role + "." + world;
  out->uri_ = "spiffe://tangram/" + world + "/" + role + "/";
  out->stamp_ = out->Look();
  auto context = out->Read();
  if (!context.ok()) return context.status();
  out->context_ = std::move(context).value();
  out->looked_ = std::chrono::steady_clock::now();
  return out;
}

std::shared_ptr<Credentials> Credentials::Insecure() {
  return std::shared_ptr<Credentials>(new Credentials);
}

Credentials::Stamp Credentials::Look() const {
  Stamp out{};
  size_t at = 0;
  for (const std::string* path : {&files_.ca, &files_.cert, &files_.key}) {
    struct stat info {};
    (void)stat(path->c_str(), &info);  // a missing file differs from any
    for (const int64_t part :
         {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
          static_cast<int64_t>(info.st_size), static_cast<int64_t>(info.st_mtim.tv_sec),
          static_cast<int64_t>(info.st_mtim.tv_nsec)}) {
      out.at(at++) = part;
    }
  }
  return out;
}

Result<Credentials::Context> Credentials::Read() const {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  if (!context) return Status{Code::kInternal, "no TLS context"};
  SSL_CTX* ctx = context.get();
  SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
  // The first cipher that both sides support is used. With AES in hardware it is the cheapest.
  SSL_CTX_set_ciphersuites(
      ctx, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);  // each message states its own length
  SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  // No data follows a handshake without a request.
  SSL_CTX_set_num_tickets(ctx, 0);
  SSL_CTX_set_max_cert_list(ctx, kMostChainBytes);
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (SSL_CTX_load_verify_file(ctx, files_.ca.c_str()) != 1) {
    return Refuse("authority", files_.ca);
  }
  if (SSL_CTX_use_certificate_chain_file(ctx, files_.cert.c_str()) != 1) {
    return Refuse("certificate", files_.cert);
  }
  if (SSL_CTX_use_PrivateKey_file(ctx, files_.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(ctx) != 1) {
    return Refuse("key", files_.key);
  }
  return context;
}

Credentials::Context Credentials::Current() {
  if (!secure()) return nullptr;
  const std::scoped_lock lock(mu_);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookAgain) return context_;
  looked_ = now;
  const Stamp stamp = Look();
  if (stamp == stamp_) return context_;
  // The files of one certificate are written one after another. If they do not match yet, the next
  // check reads them again.
  auto context = Read();
  if (context.ok()) {
    context_ = std::move(context).value();
    stamp_ = stamp;
    spdlog::info("certificates reloaded name=\"{}\"", name_);
  } else {
    spdlog::warn(
        "certificates not reloaded, the previous ones stay in use name=\"{}\" error=\"{}\"", name_,
        context.status().message());
  }
  return context_;
}

Status Credentials::Reload() {
  if (!secure()) return OkStatus();
  const std::scoped_lock lock(mu_);
  const Stamp stamp = Look();
  auto context = Read();
  if (!context.ok()) return context.status();
  context_ = std::move(context).value();
  stamp_ = stamp;
  return OkStatus();
}

Result<std::chrono::system_clock::time_point> EndOf(const std::string& cert) {
  ERR_clear_error();
  const std::unique_ptr<BIO, decltype(&BIO_free)> file(BIO_new_file(cert.c_str(), "r"), &BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> read(
      file ? PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr) : nullptr, &X509_free);
  std::tm at{};
  if (!read || ASN1_TIME_to_tm(X509_get0_notAfter(read.get()), &at) != 1) {
    return Refuse("certificate", cert);
  }
  return std::chrono::system_clock::from_time_t(timegm(&at));
}

}  // namespace tangram::net
