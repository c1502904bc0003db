// Credentials for gRPC from files that are read again while it runs. A renewed certificate or
// authority applies to connections that begin after it, within seconds; others continue. Both sides
// present a certificate of the world's authority. The service itself checks which callers may call
// it.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "agent/net/credentials.h"

namespace tangram::net {

// kInvalid: a file cannot be read. Later read errors change nothing.
Result<std::shared_ptr<grpc::ServerCredentials>> GrpcServer(const TlsFiles& files);
// The channel names the expected peer by SetSslTargetNameOverride: <role>.<world>.
Result<std::shared_ptr<grpc::ChannelCredentials>> GrpcChannel(const TlsFiles& files);

}  // namespace tangram::net
