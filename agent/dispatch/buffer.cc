#include "agent/dispatch/buffer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tangram::dispatch {
namespace {

Geometry GeometryOf(const BufferOptions& options) {
  return options.geometry == Geometry{} ? WholeMessages(options.format) : options.geometry;
}

}  // namespace

Buffer::SizeHint Buffer::GetBufferSizeHint(const BufferOptions& options, uint32_t ranks,
                                           uint32_t local_experts) {
  const Format& format = options.format;
  SizeHint hint;
  hint.per_peer = GeometryOf(options).bytes();
  hint.links = hint.per_peer * (ranks - 1);
  const uint64_t worst =
      uint64_t{ranks} * format.most_tokens * std::min(format.top_k, local_experts);
  const uint64_t rows =
      options.exchange.packed_capacity != 0 ? options.exchange.packed_capacity : worst;
  // For two pairs: received rows and the experts' outputs.
  hint.packed =
      2 * rows * (RowBytes(format.wire, format.hidden) + RowBytes(format.outputs(), format.hidden));
  return hint;
}

Result<std::unique_ptr<Buffer>> Buffer::Create(Member self, const BufferOptions& options,
                                               std::shared_ptr<net::Credentials> credentials) {
  if (options.format.most_tokens == 0)
    return Status{Code::kInvalid, "format of rows: most_tokens is 0: memory has no bound then"};
  Result<std::unique_ptr<Peers>> peers =
      Peers::Listen(std::move(self), options.format, GeometryOf(options), std::move(credentials));
  if (!peers.ok()) return peers.status();
  return std::unique_ptr<Buffer>(
      new Buffer(std::move(*peers), std::make_unique<Exchange>(options.format, options.exchange)));
}

Status Buffer::UpdateMembers(uint64_t epoch, std::span<const MemberId> members,
                             std::shared_ptr<const Routes> routes) {
  if (entered_ && epoch <= exchange_->epoch())
    return {Code::kStaleEpoch,
            "epoch " + std::to_string(epoch) + " after " + std::to_string(exchange_->epoch())};
  TANGRAM_RETURN_IF_ERROR(peers_->Enter(members));
  for (uint32_t r = 0; r < members.size(); ++r)
    if (r != peers_->rank() && peers_->at(r) == nullptr && !peers_->GivenUp(members[r]))
      return {Code::kUnavailable, "no connection with " + NameOf(members[r]) + " was prepared"};
  exchange_->Enter(epoch, peers_.get(), std::move(routes));
  entered_ = true;
  return OkStatus();
}

Result<Handle> Buffer::Dispatch(uint32_t moe_ordinal, const Rows& rows) {
  const Result<Handle> handle = exchange_->Send(moe_ordinal, rows);
  if (!handle.ok()) return handle;
  TANGRAM_RETURN_IF_ERROR(exchange_->Receive(*handle));
  return handle;
}

Status Buffer::Combine(const Handle& handle, const void* outputs, void* y) {
  TANGRAM_RETURN_IF_ERROR(exchange_->SendBack(handle, outputs));
  return exchange_->Finish(handle, y);
}

}  // namespace tangram::dispatch
