#include "agent/mover/data_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "agent/base/background.h"

namespace tangram::mover {

Result<std::unique_ptr<DataServer>> DataServer::Start(const std::string& listen, Grants* grants) {
  auto fd = Listen(listen);
  if (!fd.ok()) return fd.status();
  const auto port = PortOf(fd->get());
  if (!port.ok()) return port.status();
  return std::unique_ptr<DataServer>(new DataServer(std::move(fd).value(), *port, grants));
}

DataServer::DataServer(UniqueFd listener, uint16_t port, Grants* grants)
    : listener_(std::move(listener)),
      port_(port),
      grants_(grants),
      acceptor_([this](std::stop_token stop) { Accept(stop); }) {}

DataServer::~DataServer() {
  acceptor_.request_stop();
  acceptor_.join();
  for (Connection& connection : connections_) connection.thread.request_stop();
  connections_.clear();  // joins
}

void DataServer::Accept(std::stop_token stop) {
  while (!stop.stop_requested()) {
    pollfd poll_fd{listener_.get(), POLLIN, 0};
    if (poll(&poll_fd, 1, 50) <= 0) continue;
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EMFILE || errno == ENFILE) {
        spdlog::error("data listener: out of descriptors");
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      continue;
    }
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::scoped_lock lock(mu_);
    connections_.remove_if([](const Connection& c) { return c.done.load(); });
    Connection& connection = connections_.emplace_back();
    connection.fd = std::move(fd);
    connection.thread = std::jthread([this, &connection](std::stop_token own) {
      Serve(&connection, own);
      connection.fd.reset();
      connection.done = true;
    });
  }
}

void DataServer::Serve(Connection* connection, std::stop_token stop) {
  const int fd = connection->fd.get();
  std::string token(16, '\0');
  if (!ReadAll(fd, std::as_writable_bytes(std::span(token)), stop).ok()) return;
  const std::optional<Grant> grant = grants_->Redeem(token);
  if (!grant) {
    spdlog::warn("data connection with a token that is not (or no longer) good: refused");
    return;
  }
  if (!grant->kv.empty()) {
    // The end of the connection is the normal end.
    (void)ServeKv(fd, grant->kv, stop);
    return;
  }
  YieldToServing();
  std::vector<iovec> parts;
  parts.reserve(grant->pieces.size());
  for (const auto& piece : grant->pieces) {
    parts.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  if (Status status = WriteAll(fd, std::move(parts), stop, grant->lease.get()); !status.ok()) {
    spdlog::warn("data connection of attempt {}: {}", grant->attempt, status.message());
  }
}

Status DataServer::ServeKv(int fd, std::span<const std::byte> region, std::stop_token stop) {
  while (true) {
    uint32_t count = 0;
    TANGRAM_RETURN_IF_ERROR(ReadAll(fd, std::as_writable_bytes(std::span(&count, 1)), stop));
    if (count > kMostRanges)
      return {Code::kInvalid, fmt::format("{} ranges in one request", count)};
    std::vector<std::byte> ranges(size_t{count} * 12);
    TANGRAM_RETURN_IF_ERROR(ReadAll(fd, ranges, stop));
    std::vector<iovec> parts;
    parts.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      uint64_t offset = 0;
      uint32_t length = 0;
      std::memcpy(&offset, ranges.data() + size_t{i} * 12, sizeof offset);
      std::memcpy(&length, ranges.data() + size_t{i} * 12 + 8, sizeof length);
      if (offset > region.size() || length > region.size() - offset) {
        return {Code::kInvalid,
                fmt::format("KV range of {} bytes at {} of {}", length, offset, region.size())};
      }
      parts.push_back({const_cast<std::byte*>(region.data() + offset), length});
    }
    TANGRAM_RETURN_IF_ERROR(WriteAll(fd, std::move(parts), stop));
  }
}

}  // namespace tangram::mover
