#include "agent/net/testing/thief.h"

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>

#include <cstdlib>
#include <memory>

#include "agent/net/socket.h"

namespace tangram::net::testing {
namespace {

std::unique_ptr<BIO, decltype(&BIO_free)> Text(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

}  // namespace

std::string Steal(const std::string& address, const std::optional<TlsTexts>& shows,
                  const std::string& says, size_t most) {
  signal(SIGPIPE, SIG_IGN);  // the library's own socket BIO raises it
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  &SSL_CTX_free);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  if (shows) {
    const std::unique_ptr<X509, decltype(&X509_free)> cert(
        PEM_read_bio_X509(Text(shows->cert).get(), nullptr, nullptr, nullptr), &X509_free);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
        PEM_read_bio_PrivateKey(Text(shows->key).get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
    if (SSL_CTX_use_certificate(context.get(), cert.get()) != 1 ||
        SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1) {
      std::abort();
    }
  }
  const auto fd = Dial(address);
  if (!fd.ok()) std::abort();
  pollfd connected{fd->get(), POLLOUT, 0};
  poll(&connected, 1, -1);
  fcntl(fd->get(), F_SETFL, 0);  // blocking from here on
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(ssl.get(), fd->get());
  std::string out;
  if (SSL_connect(ssl.get()) != 1 ||
      SSL_write(ssl.get(), says.data(), static_cast<int>(says.size())) <= 0) {
    return out;
  }
  char byte = 0;
  while (out.size() < most && SSL_read(ssl.get(), &byte, 1) == 1) out += byte;
  return out;
}

}  // namespace tangram::net::testing
