#include "agent/net/grpc_credentials.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <chrono>
#include <fstream>
#include <limits>

namespace tangram::net {
namespace {

constexpr unsigned kLookSeconds = 1;

using Provider = grpc::experimental::FileWatcherCertificateProvider;

// The provider itself does not report a missing file.
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

// The provider supplies its files only once its first watcher, a connection, has begun. A
// connection that begins in between gets none and fails ("Failed to create security handshaker",
// gRPC 1.51). So the first one is to an address that does not exist, and is kept.
std::shared_ptr<grpc::Channel> WatchFirst(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments args;
  constexpr int kNever = std::numeric_limits<int>::max();  // ms
  for (const char* wait : {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                           GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS}) {
    args.SetInt(wait, kNever);
  }
  auto nowhere = grpc::CreateCustomChannel("unix:/dev/null", credentials, args);
  const auto until = std::chrono::system_clock::now() + std::chrono::seconds(10);
  for (auto state = nowhere->GetState(true); state != GRPC_CHANNEL_TRANSIENT_FAILURE;
       state = nowhere->GetState(false)) {
    if (!nowhere->WaitForStateChange(state, until)) break;
  }
  return nowhere;
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
  struct Held {
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    std::shared_ptr<grpc::Channel> first;
  };
  const auto held = std::make_shared<Held>();
  held->credentials = grpc::experimental::TlsCredentials(options);
  held->first = WatchFirst(held->credentials);
  return std::shared_ptr<grpc::ChannelCredentials>(held, held->credentials.get());
}

}  // namespace tangram::net
