#include "agent/client/abi.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "agent/client/arrays.h"
#include "agent/client/versioned.h"
#include "agent/dispatch/abi/placement.h"
#include "agent/dispatch/buffer.h"
#include "agent/dispatch/include/tangram/dispatch.h"

using tangram::Array;
using tangram::Code;
using tangram::Result;
using tangram::Status;
using tangram::abi::Done;
using tangram::abi::Fail;
using tangram::abi::Guarded;
namespace dispatch = tangram::dispatch;

struct tgd_buffer {
  std::unique_ptr<dispatch::Buffer> buffer;
  std::vector<uint32_t> experts;          // of the last packed rows returned
  std::vector<tgd_contribution> missing;  // of the last finished pair
  dispatch::Exchange& exchange() const { return buffer->exchange(); }
};

namespace {

std::string Text(const char* text) { return text == nullptr ? "" : text; }

// The caller must know at least the struct's members of the first header.
Result<dispatch::Member> MemberOf(const tgd_member* given) {
  const auto known = tangram::ReadKnown(given, TANGRAM_UP_TO(tgd_member, pod), "tgd_member");
  if (!known.ok()) return known.status();
  return dispatch::Member{{Text(known->name), known->generation},
                          Text(known->node),
                          Text(known->local),
                          Text(known->endpoint),
                          Text(known->pod)};
}

Result<std::vector<dispatch::Member>> MembersOf(const tgd_member* members, size_t count,
                                                size_t member_size) {
  const auto all = Array<tgd_member>::Of(members, count, member_size, "members");
  if (!all.ok()) return all.status();
  std::vector<dispatch::Member> out;
  for (size_t i = 0; i < count; ++i) {
    Result<dispatch::Member> member = MemberOf(&(*all)[i]);
    if (!member.ok()) return member.status();
    out.push_back(std::move(*member));
  }
  return out;
}

dispatch::BufferOptions OptionsOf(const tgd_options& o) {
  dispatch::BufferOptions options;
  options.format = {.hidden = o.hidden,
                    .top_k = o.top_k,
                    .experts = o.experts,
                    .x = static_cast<dispatch::Element>(o.x),
                    .wire = static_cast<dispatch::Element>(o.wire),
                    .sums = static_cast<dispatch::Element>(o.sums),
                    .most_tokens = o.most_tokens};
  if (o.slots != 0) options.geometry = {o.slots, o.slot_bytes};
  options.exchange.timeout.reset();
  if (o.timeout_us >= 0) options.exchange.timeout = std::chrono::microseconds(o.timeout_us);
  options.exchange.packed_capacity = o.packed_capacity;
  return options;
}

Result<tgd_options> Known(const tgd_options* options) {
  const auto known =
      tangram::ReadKnown(options, TANGRAM_UP_TO(tgd_options, tls_key), "tgd_options");
  if (!known.ok()) return known;
  TANGRAM_RETURN_IF_ERROR(OptionsOf(*known).format.Check());
  return known;
}

dispatch::Handle Of(const tgd_handle& handle) { return {handle.epoch, handle.pair}; }

tg_code Again(tg_error* error) { return Fail(error, TG_AGAIN, "not all of it is there yet"); }

}  // namespace

tg_code tgd_size_hint(const tgd_options* options, uint32_t ranks, uint32_t local_experts,
                      uint64_t* links, uint64_t* packed, tg_error* error) {
  return Guarded(error, [&] {
    const auto known = Known(options);
    if (!known.ok()) return Done(known.status(), error);
    if (ranks == 0) return Fail(error, TG_INVALID, "tgd_size_hint for no ranks");
    const auto hint = dispatch::Buffer::GetBufferSizeHint(OptionsOf(*known), ranks, local_experts);
    *links = hint.links;
    *packed = hint.packed;
    return Fail(error, TG_OK, "");
  });
}

tg_code tgd_open(const tgd_options* options, const tgd_member* self, tgd_buffer** out,
                 tg_error* error) {
  return Guarded(error, [&] {
    const auto known = Known(options);
    if (!known.ok()) return Done(known.status(), error);
    Result<dispatch::Member> member = MemberOf(self);
    if (!member.ok()) return Done(member.status(), error);
    auto credentials = tangram::net::Credentials::Insecure();
    if (known->tls_cert != nullptr) {
      auto opened = tangram::net::Credentials::Open(
          {Text(known->tls_ca), Text(known->tls_cert), Text(known->tls_key)}, Text(known->world),
          "engine");
      if (!opened.ok()) return Done(opened.status(), error);
      credentials = std::move(*opened);
    }
    auto buffer =
        dispatch::Buffer::Create(std::move(*member), OptionsOf(*known), std::move(credentials));
    if (!buffer.ok()) return Done(buffer.status(), error);
    *out = new tgd_buffer{std::move(*buffer), {}, {}};
    return Fail(error, TG_OK, "");
  });
}

void tgd_close(tgd_buffer* buffer) { delete buffer; }

const char* tgd_endpoint(const tgd_buffer* buffer) {
  return buffer->buffer->self().endpoint.c_str();
}

tg_code tgd_prepare(tgd_buffer* buffer, const tgd_member* members, size_t count, size_t member_size,
                    int timeout_ms, tg_error* error) {
  return Guarded(error, [&] {
    const auto all = MembersOf(members, count, member_size);
    if (!all.ok()) return Done(all.status(), error);
    return Done(buffer->buffer->Prepare(*all, std::chrono::milliseconds(timeout_ms)), error);
  });
}

tg_code tgd_update_members(tgd_buffer* buffer, uint64_t epoch, const tgd_member* members,
                           size_t count, size_t member_size, const tgd_piece* pieces,
                           size_t piece_count, size_t piece_size, tg_error* error) {
  return Guarded(error, [&] {
    const auto all = MembersOf(members, count, member_size);
    if (!all.ok()) return Done(all.status(), error);
    std::vector<dispatch::MemberId> ids;
    uint32_t rank = 0;
    for (const dispatch::Member& member : *all) {
      if (member.id == buffer->buffer->self().id) rank = static_cast<uint32_t>(ids.size());
      ids.push_back(member.id);
    }
    Result<dispatch::Routes> routes =
        dispatch::RoutesOf(pieces, piece_count, piece_size, buffer->exchange().format().experts,
                           epoch, rank, static_cast<uint32_t>(count));
    if (!routes.ok()) return Done(routes.status(), error);
    return Done(buffer->buffer->UpdateMembers(
                    epoch, ids, std::make_shared<const dispatch::Routes>(std::move(*routes))),
                error);
  });
}

tg_code tgd_ended(tgd_buffer* buffer, const char* name, uint64_t generation, tg_error* error) {
  return Guarded(error, [&] {
    buffer->buffer->Ended({Text(name), generation});
    return Fail(error, TG_OK, "");
  });
}

tg_code tgd_send(tgd_buffer* buffer, uint32_t layer, uint32_t count, const void* x,
                 const int32_t* experts, const float* weights, tgd_handle* handle,
                 tg_error* error) {
  return Guarded(error, [&] {
    const auto sent = buffer->exchange().Send(layer, {count, x, experts, weights});
    if (sent.ok()) *handle = {sent->epoch, sent->pair};
    return Done(sent.status(), error);
  });
}

tg_code tgd_receive(tgd_buffer* buffer, const tgd_handle* handle, int wait, tgd_packed* packed,
                    tg_error* error) {
  return Guarded(error, [&] {
    const Status fits = tangram::CheckKnown(packed, TANGRAM_UP_TO(tgd_packed, local), "tgd_packed");
    if (!fits.ok()) return Done(fits, error);
    dispatch::Exchange& exchange = buffer->exchange();
    if (wait != 0) {
      const Status came = exchange.Receive(Of(*handle));
      if (!came.ok()) return Done(came, error);
    }
    const Result<bool> all = exchange.TryReceive(Of(*handle));
    if (!all.ok()) return Done(all.status(), error);
    if (!*all) return Again(error);
    const dispatch::Packed came = exchange.packed(Of(*handle));
    const auto& overflow = exchange.report().overflow;
    buffer->experts.clear();
    const dispatch::LayerRoutes layer = exchange.layer(Of(*handle));
    for (const uint32_t choice : came.choices)
      buffer->experts.push_back(layer.PiecesOf(choice).front().expert);
    tgd_packed out{};
    out.rows = came.rows;
    out.wanted = overflow ? overflow->wanted : came.rows;
    out.x = came.x;
    out.scales = came.scales;
    out.experts = buffer->experts.data();
    out.counts = came.counts.data();
    out.local = came.counts.size();
    tangram::WriteKnown(packed, out);
    return Fail(error, TG_OK, "");
  });
}

tg_code tgd_next_combine_buffer(tgd_buffer* buffer, const tgd_handle* handle, void** outputs,
                                tg_error* error) {
  return Guarded(error, [&] {
    const Result<bool> all = buffer->exchange().TryReceive(Of(*handle));
    if (!all.ok()) return Done(all.status(), error);
    if (!*all) return Again(error);
    *outputs = buffer->exchange().NextCombineBuffer(Of(*handle));
    return Fail(error, TG_OK, "");
  });
}

tg_code tgd_send_back(tgd_buffer* buffer, const tgd_handle* handle, const void* outputs,
                      tg_error* error) {
  return Guarded(error,
                 [&] { return Done(buffer->exchange().SendBack(Of(*handle), outputs), error); });
}

tg_code tgd_finish(tgd_buffer* buffer, const tgd_handle* handle, int wait, void* y,
                   tg_error* error) {
  return Guarded(error, [&] {
    dispatch::Exchange& exchange = buffer->exchange();
    if (wait != 0) {
      const Status back = exchange.Finish(Of(*handle), y);
      if (!back.ok()) return Done(back, error);
    } else {
      const Result<bool> all = exchange.TryFinish(Of(*handle), y);
      if (!all.ok()) return Done(all.status(), error);
      if (!*all) return Again(error);
    }
    buffer->missing.clear();
    for (const dispatch::Contribution& c : exchange.report().missing)
      buffer->missing.push_back({c.row, c.k, c.expert});
    return Fail(error, TG_OK, "");
  });
}

size_t tgd_missing(const tgd_buffer* buffer, const tgd_contribution** out) {
  *out = buffer->missing.data();
  return buffer->missing.size();
}

size_t tgd_active_ranks(const tgd_buffer* buffer, const uint8_t** out) {
  const auto active = buffer->exchange().active_ranks();
  *out = active.data();
  return active.size();
}

const char* tgd_cause(const tgd_buffer* buffer, uint32_t rank) {
  return rank < buffer->exchange().active_ranks().size() ? buffer->exchange().cause(rank).c_str()
                                                         : "";
}

int tgd_found(const tgd_buffer* buffer, uint32_t rank, tg_missed* out) {
  const dispatch::Exchange& exchange = buffer->exchange();
  const auto active = exchange.active_ranks();
  if (rank >= active.size() || active[rank] != 0) return 0;
  const dispatch::Found& found = exchange.found(rank);
  *out = {rank, static_cast<uint32_t>(found.cause), found.doing, found.layer};
  return 1;
}

tg_code tgd_mask(tgd_buffer* buffer, uint32_t rank, const char* cause, tg_error* error) {
  return Guarded(error, [&] {
    const auto ranks = buffer->exchange().active_ranks().size();
    if (rank >= ranks || rank == buffer->buffer->peers().rank())
      return Fail(error, TG_INVALID, "tgd_mask of a rank that is no peer");
    buffer->exchange().Mask(rank, Text(cause));
    return Fail(error, TG_OK, "");
  });
}

const char* tgd_path(const tgd_buffer* buffer, uint32_t rank) {
  return rank < buffer->buffer->peers().ranks() ? buffer->buffer->peers().path(rank) : "none";
}
