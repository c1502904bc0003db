// Credentials for gRPC from files that are read again while it runs: a renewed certificate or
// authority holds for connections that begin after it, within seconds; the others go on. Both sides
// show a certificate of the world's authority; who may call what is the service's to look at.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "agent/net/credentials.h"

namespace tangram::net {

// kInvalid: a file cannot be read. What cannot be read later changes nothing.
Result<std::shared_ptr<grpc::ServerCredentials>> GrpcServer(const TlsFiles& files);
// The channel names whom it looks for by SetSslTargetNameOverride: <role>.<world>.
Result<std::shared_ptr<grpc::ChannelCredentials>> GrpcChannel(const TlsFiles& files);

}  // namespace tangram::net
