#include "agent/net/grpc_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <fstream>

namespace tangram::net {
namespace {

constexpr unsigned kLookSeconds = 1;

using Provider = grpc::experimental::FileWatcherCertificateProvider;

// The provider itself says nothing of a file that is not there.
Result<std::shared_ptr<Provider>> Watch(const TlsFiles& files) {
  for (const std::string* path : {&files.ca, &files.cert, &files.key}) {
    if (std::ifstream(*path).peek() == std::ifstream::traits_type::eof()) {
      return Status{Code::kInvalid, "cannot read \"" + *path + "\", or it is empty"};
    }
  }
  return std::make_shared<Provider>(files.key, files.cert, files.ca, kLookSeconds);
}

void WatchAll(grpc::experimental::TlsCredentialsOptions* options,
              const std::shared_ptr<Provider>& provider) {
  options->set_certificate_provider(provider);
  options->watch_root_certs();
  options->watch_identity_key_cert_pairs();
}

}  // namespace

Result<std::shared_ptr<grpc::ServerCredentials>> GrpcServer(const TlsFiles& files) {
  const auto provider = Watch(files);
  if (!provider.ok()) return provider.status();
  grpc::experimental::TlsServerCredentialsOptions options(*provider);
  WatchAll(&options, *provider);
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> GrpcChannel(const TlsFiles& files) {
  const auto provider = Watch(files);
  if (!provider.ok()) return provider.status();
  grpc::experimental::TlsChannelCredentialsOptions options;
  WatchAll(&options, *provider);
  options.set_verify_server_certs(true);
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace tangram::net
