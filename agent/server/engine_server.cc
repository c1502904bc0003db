#include "agent/server/engine_server.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "agent/base/fault.h"
#include "agent/base/thread.h"
#include "agent/server/refusal.h"

namespace tangram {
namespace {

const fault::Point kAttach("engine.attach", fault::kErrors);
const fault::Point kFlipReply("flip.before_reply");

bool SameToken(const std::string& a, const std::string& b) {
  // Constant-time in the content; the length of the token is no secret.
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

uint64_t AttemptOf(const v1::EngineMessage& m) {
  if (m.has_prepared()) return m.prepared().header().attempt();
  if (m.has_mapped()) return m.mapped().header().attempt();
  if (m.has_unmapped()) return m.unmapped().header().attempt();
  return 0;
}

using Extents = google::protobuf::RepeatedPtrField<v1::Extent>;

// The extents of a message, which name descriptors.
std::vector<Extents*> ExtentsIn(v1::EngineMessage* message) {
  std::vector<Extents*> out;
  const auto add = [&](auto* mappings) {
    for (v1::Mapping& mapping : *mappings) out.push_back(mapping.mutable_extents());
  };
  if (message->has_map()) add(message->mutable_map()->mutable_mappings());
  if (!message->has_attached()) return out;
  v1::Attached& attached = *message->mutable_attached();
  out = {attached.mutable_kv(), attached.mutable_control()};
  add(attached.mutable_mappings());
  return out;
}

// Enough for an engine with one descriptor per piece.
constexpr size_t kMostKept = 1u << 20;

// Every status contains the engine's settings, so they are bounded.
Status CheckSettings(const v1::EngineCapabilities& declared) {
  constexpr size_t kMost = 64, kBytes = 256;
  if (declared.settings().size() > kMost) {
    return {Code::kEngine, fmt::format("engine declares {} settings, the maximum is {}",
                                       declared.settings().size(), kMost)};
  }
  for (const auto& [name, value] : declared.settings()) {
    if (name.size() <= kBytes && value.size() <= kBytes) continue;
    return {Code::kEngine, fmt::format("engine declares setting {}... of more than {} bytes",
                                       name.substr(0, 32), kBytes)};
  }
  return OkStatus();
}

}  // namespace

Status EngineServer::Session::Send(v1::EngineMessage message,
                                   std::span<const SharedFd> descriptors) {
  // Held until they are sent, so that no other message uses their numbers before.
  const std::scoped_lock lock(book_mu);
  std::vector<PassedFd> fresh;
  const std::vector<uint32_t> numbers = book.NumbersOf(descriptors, &fresh);
  for (Extents* each : ExtentsIn(&message)) Renumber(each, numbers);
  return channel.Send(std::move(message), fresh);
}

EngineServer::~EngineServer() { Stop(); }

Status EngineServer::Start(Executor* executor) {
  executor_ = executor;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (options_.path.empty() || options_.path.size() >= sizeof address.sun_path) {
    return {Code::kInvalid, fmt::format("engine_socket: path '{}' must have 1 to {} bytes",
                                        options_.path, sizeof address.sun_path - 1)};
  }
  std::memcpy(address.sun_path, options_.path.data(), options_.path.size());
  const auto failed = [&](const char* what) {
    return Status(Code::kInvalid, fmt::format("engine_socket {}: {}: {}", options_.path, what,
                                              std::strerror(errno)));
  };
  {
    // A socket that still accepts belongs to another live agent: never remove it.
    const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      return {Code::kInvalid,
              fmt::format("engine_socket {}: in use by another agent", options_.path)};
    }
    struct stat info {};
    if (lstat(options_.path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
      unlink(options_.path.c_str());
    }
  }
  listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) return failed("socket");
  const mode_t before = umask(0177);  // the socket is this user's alone
  const int bound = bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  umask(before);
  if (bound != 0) return failed("bind");
  if (listen(listener_.get(), 16) != 0) return failed("listen");
  auto acceptor = StartThread([this](std::stop_token stop) { Accept(std::move(stop)); });
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = std::move(acceptor).value();
  return OkStatus();
}

void EngineServer::Stop() {
  stopping_.request_stop();
  acceptor_.request_stop();
  if (acceptor_.joinable()) acceptor_.join();
  if (listener_) unlink(options_.path.c_str());
  listener_.reset();
  std::list<Worker> workers;
  {
    const std::scoped_lock lock(mu_);
    workers.swap(workers_);
    for (Worker& worker : workers) {
      worker.session->gone = true;
      worker.session->channel.Shutdown();
    }
    changed_.notify_all();
  }
  for (Worker& worker : workers) worker.thread.join();
}

void EngineServer::Reap() {
  std::list<Worker> done;
  {
    const std::scoped_lock lock(mu_);
    for (auto it = workers_.begin(); it != workers_.end();) {
      const auto next = std::next(it);
      if (it->done->load()) done.splice(done.end(), workers_, it);
      it = next;
    }
  }
  for (Worker& worker : done) worker.thread.join();
}

void EngineServer::Accept(std::stop_token stop) {
  while (!stop.stop_requested()) {
    pollfd wait{listener_.get(), POLLIN, 0};
    if (poll(&wait, 1, 100) <= 0) continue;
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;
    Reap();
    auto session = std::make_shared<Session>(std::move(socket));
    auto done = std::make_shared<std::atomic<bool>>(false);
    const std::scoped_lock lock(mu_);
    if (workers_.size() >= 64) {
      spdlog::warn("engine connection dropped, too many are open limit=64");
      continue;
    }
    auto thread = StartThread([this, session, done] {
      Serve(session);
      done->store(true);
    });
    if (!thread.ok()) {
      spdlog::error("engine connection dropped error=\"{}\"", thread.status().message());
      continue;
    }
    workers_.push_back({session, std::move(thread).value(), done});
  }
}

void EngineServer::Refuse(Session* session, const Status& status) {
  spdlog::warn("engine rejected error=\"{}\"", status.message());
  v1::EngineMessage message;
  *message.mutable_refused()->mutable_refusal() = ToRefusal(status, executor_->Current());
  (void)session->channel.Send(std::move(message));
}

void EngineServer::Serve(SessionPtr session) {
  if (Status status = Admit(session); !status.ok()) {
    Refuse(session.get(), status);
    session->channel.Shutdown();
    Forget(session);  // it was evicted during its admission, and has nothing mapped
    return;
  }
  Run(session);
  session->channel.Shutdown();
  session->pull = {};           // no pull may write into the KV of the device's next engine
  if (Forget(session)) return;  // the thread that evicted it does the rest
  spdlog::info("engine detached device={}", session->device);
  executor_->EngineGone(session->device);
}

bool EngineServer::Forget(const SessionPtr& session) {
  const std::scoped_lock lock(mu_);
  session->gone = true;
  for (auto* places : {&by_device_, &dismissed_}) {
    const auto it = places->find(session->device);
    if (it != places->end() && it->second == session) places->erase(it);
  }
  changed_.notify_all();
  return session->dismissed;
}

Result<Frame> EngineServer::FirstOf(Session* session) const {
  Frame all;
  while (!all.message.has_attach()) {
    auto frame = session->channel.Receive(static_cast<int>(options_.attach_timeout.count()));
    if (!frame.ok()) return frame.status();
    if (!frame->has_value()) {
      return Status{Code::kInvalid, "no attach message before the attach timeout"};
    }
    Frame& next = **frame;
    if (!next.message.has_attach() && !next.message.has_descriptors()) {
      return Status{Code::kInvalid, "the first message of an engine must be an attach"};
    }
    if (all.fds.size() + next.fds.size() > kMostKept) {
      return Status{Code::kInvalid,
                    fmt::format("engine passed more than {} descriptors", kMostKept)};
    }
    std::move(next.fds.begin(), next.fds.end(), std::back_inserter(all.fds));
    auto numbers = std::move(*all.message.mutable_fd_index());
    numbers.Add(next.message.fd_index().begin(), next.message.fd_index().end());
    *next.message.mutable_fd_index() = std::move(numbers);
    all.message = std::move(next.message);
  }
  return all;
}

Status EngineServer::Admit(const SessionPtr& session) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(session->channel.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      peer.uid != geteuid()) {
    return {Code::kUnauthenticated,
            fmt::format("engine runs as user {}, the agent as user {}; run both as the same user",
                        peer.uid, geteuid())};
  }
  auto frame = FirstOf(session.get());
  if (!frame.ok()) return frame.status();
  const v1::Attach& attach = frame->message.attach();
  if (!SameToken(attach.token(), options_.token)) {
    return {Code::kUnauthenticated,
            "the engine's token is not the token of this pod (engine_token_file)"};
  }
  const auto& takes = attach.capabilities().slab_formats();
  if (std::find(takes.begin(), takes.end(), options_.slab_format) == takes.end()) {
    const bool rows = options_.slab_format == v1::SLAB_FORMAT_ROW_MAJOR;
    return {Code::kEngine,
            fmt::format("engine does not support slab_format {} of this agent's configuration",
                        rows ? "row-major" : "granule-major")};
  }
  TANGRAM_RETURN_IF_ERROR(CheckSettings(attach.capabilities()));
  session->device = attach.device();
  session->info.capabilities = attach.capabilities();
  session->info.endpoint = attach.endpoint();
  session->info.frontend = attach.frontend();
  session->info.kv_block_tokens = attach.kv_block_tokens();
  {
    // The place is taken before the executor checks. So an attempt that begins meanwhile either
    // sees this engine, or makes it attach again.
    const std::scoped_lock lock(mu_);
    if (dismissed_.contains(attach.device())) {
      return {Code::kWrongPhase, fmt::format("device {}: the evicted engine still has the memory "
                                             "mapped; attach again after its process has ended",
                                             attach.device())};
    }
    const auto [it, fresh] = by_device_.try_emplace(attach.device(), session);
    if (!fresh) {
      return {Code::kEngine,
              fmt::format("device {}: another engine (incarnation {}) is attached already",
                          attach.device(), it->second->info.incarnation)};
    }
    session->info.attached = true;
    session->info.incarnation = ++incarnations_[attach.device()];
  }
  if (Status fault = fault::Check("engine.attach"); !fault.ok()) {
    Forget(session);
    return fault;
  }
  v1::EngineMessage message;
  std::vector<SharedFd> descriptors;
  if (attach.has_resume()) {
    KeptFds kept;
    for (size_t i = 0; i < frame->fds.size(); ++i) {
      kept[frame->message.fd_index(static_cast<int>(i))] = std::move(frame->fds[i]);
    }
    auto resumed =
        executor_->Resume(attach.device(), attach.resume(), std::move(kept), stopping_.get_token());
    if (!resumed.ok()) {
      Forget(session);
      return resumed.status();
    }
    for (const auto& [number, shown] : *resumed) session->book.Has(number, shown);
    message.mutable_attached()->mutable_member()->set_id(attach.resume().member());
  } else {
    auto attachment = executor_->Attach(attach.device());
    if (!attachment.ok()) {
      Forget(session);
      return attachment.status();
    }
    *message.mutable_attached() = std::move(attachment->message);
    descriptors = std::move(attachment->descriptors);
  }
  if (Status sent = session->Send(std::move(message), descriptors); !sent.ok()) {
    Forget(session);
    executor_->EngineGone(attach.device());  // it died while its memory was verified
    return sent;
  }
  const std::scoped_lock lock(mu_);
  session->ready = true;
  changed_.notify_all();
  spdlog::info("engine attached device={} incarnation={} mesh={} frontend={}", session->device,
               session->info.incarnation, session->info.endpoint, session->info.frontend);
  return OkStatus();
}

void EngineServer::Run(const SessionPtr& session) {
  while (true) {
    auto frame = session->channel.Receive(-1);
    if (!frame.ok()) {
      if (frame.status().code() == Code::kInvalid) Refuse(session.get(), frame.status());
      return;
    }
    if (!frame->has_value()) continue;
    {
      const std::scoped_lock lock(mu_);
      if (session->dismissed) continue;  // it has not read the eviction yet
    }
    v1::EngineMessage& message = (*frame)->message;
    v1::EngineMessage reply;
    switch (message.body_case()) {
      case v1::EngineMessage::kFlip: {
        const Status status = executor_->Flip(session->device, message.flip());
        (void)fault::Hit("flip.before_reply");
        *reply.mutable_flipped()->mutable_header() = message.flip().header();
        reply.mutable_flipped()->set_ok(status.ok());
        reply.mutable_flipped()->set_message(status.message());
        break;
      }
      case v1::EngineMessage::kKvPull: {
        const Status begun = BeginPull(session.get(), std::move(*message.mutable_kv_pull()));
        if (begun.ok()) continue;
        Refuse(session.get(), begun);
        return;
      }
      case v1::EngineMessage::kClosed: {
        const std::scoped_lock lock(session->book_mu);
        for (const uint32_t number : message.closed().fd_index()) session->book.Closed(number);
        continue;
      }
      case v1::EngineMessage::kPrepared:
      case v1::EngineMessage::kMapped:
      case v1::EngineMessage::kUnmapped: {
        const std::scoped_lock lock(mu_);
        // The reply may be late, with no waiting call: bounded, the oldest are dropped.
        if (session->replies.size() > 64) session->replies.erase(session->replies.begin());
        session->replies[{message.body_case(), AttemptOf(message)}] = std::move(message);
        changed_.notify_all();
        continue;
      }
      default:
        Refuse(session.get(),
               {Code::kInvalid, fmt::format("message type {} is not one that engines send",
                                            static_cast<int>(message.body_case()))});
        return;
    }
    if (!session->channel.Send(std::move(reply)).ok()) return;
  }
}

Status EngineServer::BeginPull(Session* session, v1::KvPull pull) {
  if (session->pulling) {
    return {Code::kInvalid, "KV pull requested while another one is in progress"};
  }
  session->pulling = true;
  try {
    session->pull = std::jthread([this, session, pull = std::move(pull)](std::stop_token stop) {
      v1::EngineMessage answer = Pull(session->device, pull, std::move(stop));
      session->pulling = false;                        // before the engine may request the next
      (void)session->channel.Send(std::move(answer));  // Run detects a detached engine
    });
  } catch (const std::system_error& none) {  // the pod's process limit
    session->pulling = false;
    return {Code::kUnavailable,
            fmt::format("cannot start a thread for the KV pull: {}", none.what())};
  }
  return OkStatus();
}

v1::EngineMessage EngineServer::Pull(uint32_t device, const v1::KvPull& pull,
                                     std::stop_token stop) {
  v1::EngineMessage answer;
  v1::KvPulled& pulled = *answer.mutable_kv_pulled();
  *pulled.mutable_header() = pull.header();
  const auto bytes = executor_->KvPull(device, pull, std::move(stop));
  pulled.set_ok(bytes.ok());
  if (bytes.ok()) {
    pulled.set_bytes(bytes->value_or(0));
    pulled.set_later(!bytes->has_value());
  } else {
    pulled.set_message(bytes.status().message());
  }
  return answer;
}

EngineInfo EngineServer::Info(uint32_t device) {
  const std::scoped_lock lock(mu_);
  const auto it = by_device_.find(device);
  return it == by_device_.end() ? EngineInfo{} : it->second->info;
}

Result<v1::EngineMessage> EngineServer::Call(uint32_t device, v1::EngineMessage message,
                                             v1::EngineMessage::BodyCase reply, uint64_t attempt,
                                             std::stop_token stop,
                                             std::span<const SharedFd> descriptors) {
  SessionPtr session;
  const std::pair<int, uint64_t> key{reply, attempt};
  {
    std::unique_lock lock(mu_);
    const auto it = by_device_.find(device);
    if (it == by_device_.end()) {
      return Status{Code::kUnavailable, fmt::format("no engine is attached to device {}", device)};
    }
    session = it->second;
    if (!changed_.wait_for(lock, stop, options_.attach_timeout,
                           [&] { return session->ready || session->gone; })) {
      // The reply to its attach must come first.
      return Status{Code::kUnavailable,
                    fmt::format("the engine of device {} is still attaching", device)};
    }
    session->replies.erase(key);
  }
  TANGRAM_RETURN_IF_ERROR(session->Send(std::move(message), descriptors));
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, stop, options_.reply_timeout,
                    [&] { return session->gone || session->replies.contains(key); });
  const auto it = session->replies.find(key);
  if (it == session->replies.end()) {
    if (session->gone) {
      return Status{Code::kUnavailable, fmt::format("the engine of device {} detached", device)};
    }
    if (stop.stop_requested()) {
      return Status{Code::kUnavailable,
                    fmt::format("the call to the engine of device {} was cancelled", device)};
    }
    return Status{Code::kUnavailable,
                  fmt::format("the engine of device {} did not reply within {} ms", device,
                              options_.reply_timeout.count())};
  }
  v1::EngineMessage out = std::move(it->second);
  session->replies.erase(it);
  return out;
}

Status EngineServer::Prepare(uint32_t device, const v1::EnginePrepare& prepare,
                             std::stop_token stop) {
  v1::EngineMessage message;
  *message.mutable_prepare() = prepare;
  auto reply = Call(device, std::move(message), v1::EngineMessage::kPrepared,
                    prepare.header().attempt(), std::move(stop));
  if (!reply.ok()) return reply.status();
  if (reply->prepared().ok()) return OkStatus();
  return {Code::kEngine, fmt::format("the engine of device {} rejected the flip: {}", device,
                                     reply->prepared().message())};
}

Status EngineServer::Map(uint32_t device, const v1::Header& header, EngineMappings mappings,
                         std::stop_token stop) {
  v1::EngineMessage message;
  *message.mutable_map()->mutable_header() = header;
  for (v1::Mapping& mapping : mappings.mappings) {
    *message.mutable_map()->add_mappings() = std::move(mapping);
  }
  auto reply = Call(device, std::move(message), v1::EngineMessage::kMapped, header.attempt(),
                    std::move(stop), mappings.descriptors);
  if (!reply.ok()) return reply.status();
  if (reply->mapped().ok()) return OkStatus();
  return {Code::kEngine, fmt::format("the engine of device {} cannot map its memory: {}", device,
                                     reply->mapped().message())};
}

Status EngineServer::Unmap(uint32_t device, const v1::EngineUnmap& unmap) {
  v1::EngineMessage message;
  *message.mutable_unmap() = unmap;
  return Call(device, std::move(message), v1::EngineMessage::kUnmapped, unmap.header().attempt())
      .status();
}

void EngineServer::Abort(uint32_t device, const v1::EngineAbort& abort) {
  SessionPtr session;
  {
    const std::scoped_lock lock(mu_);
    const auto it = by_device_.find(device);
    // The reply to its attach must come first; until then the engine knows no attempt.
    if (it == by_device_.end() || !it->second->ready) return;
    session = it->second;
  }
  v1::EngineMessage message;
  *message.mutable_abort() = abort;
  (void)session->channel.Send(std::move(message));
}

void EngineServer::Dismiss(uint32_t device, const std::string& reason) {
  SessionPtr session;
  {
    const std::scoped_lock lock(mu_);
    const auto it = by_device_.find(device);
    if (it == by_device_.end()) return;
    session = it->second;
    // An unresponsive process does not read it. Only its end closes the connection, and until then
    // no other engine gets this memory.
    session->gone = session->dismissed = true;
    dismissed_[device] = session;
    by_device_.erase(it);
    changed_.notify_all();
  }
  Refuse(session.get(), {Code::kEngine, "this rank is no longer a member of the world: " + reason});
  session->channel.EndSending();
}

}  // namespace tangram
