// The members of a world and the links with them: kept over epochs, and created in advance for
// future members. One thread.
//
// In a pair, the smaller id dials: over shared memory if both are on one node, else over TCP.
// Memory that a dropped member may still write to stays mapped and unused, until the caller reports
// that its process has ended.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/base/status.h"
#include "agent/base/unique_fd.h"
#include "agent/dispatch/hello.h"
#include "agent/dispatch/link.h"
#include "agent/net/credentials.h"

namespace tangram::dispatch {

struct Member {
  MemberId id;
  std::string node;      // members of one node share memory if both have a `local`
  std::string local;     // unix:PATH, or empty
  std::string endpoint;  // host:port, or empty
  std::string pod;       // must be in its certificate, over TLS
};

class Peers final : public Links {
 public:
  // Listens at the addresses in `self` (port 0: any; self() has the result).
  static Result<std::unique_ptr<Peers>> Listen(Member self, const Format& format,
                                               const Geometry& geometry,
                                               std::shared_ptr<net::Credentials> credentials);
  ~Peers() override;

  const Member& self() const { return self_; }
  // Creates missing links, and waits for them, for `limit` at most. All members of the next world
  // call it, during or between their steps. kUnavailable lists the missing ones with the reasons.
  // Working links are kept.
  Status Prepare(std::span<const Member> members, std::chrono::milliseconds limit);
  // Sets the ranks, by their index in the list, this member included. A member whose link is
  // missing, ended or dropped is a rank without a link. Links of other members are dropped: they
  // are quarantined. Creates no links and does not wait. kInvalid: this member is not in the list,
  // or a member is in it twice.
  Status Enter(std::span<const MemberId> members);
  // The member's process is known to have ended: frees its memory.
  void Ended(const MemberId& id);
  bool GivenUp(const MemberId& id) const { return quarantine_.contains(id); }
  // Bytes of memory that dropped members may still write to.
  uint64_t quarantined() const;

  uint32_t ranks() const override { return static_cast<uint32_t>(by_rank_.size()); }
  uint32_t rank() const override { return rank_; }
  Link* at(uint32_t rank) override { return by_rank_[rank]; }
  // The transport of a rank: "shared memory", "TCP"; "here" for this rank, else "none".
  const char* path(uint32_t rank) const;

 private:
  struct Greeting;  // a connection before both hellos are complete
  Peers(Member self, const Format& format, const Geometry& geometry,
        std::shared_ptr<net::Credentials> credentials);
  Hello HelloTo(const MemberId& to, Hello::Path path, Lane lane, uint64_t attempt) const;
  Status Dial(const Member& to);
  Status Say(Greeting& greeting);
  void Accept(int listener, bool local);
  // Makes progress; true once it is complete or lost.
  bool Drive(Greeting& greeting);
  Status Heard(Greeting& greeting);
  void Adopt(Greeting& greeting);
  void Progress(std::chrono::milliseconds most);

  Member self_;
  const Format format_;
  const Geometry geometry_;
  const std::shared_ptr<net::Credentials> credentials_, local_credentials_;
  UniqueFd local_, tcp_;
  std::vector<std::unique_ptr<Greeting>> greetings_;
  // For TCP: one lane is connected, the other not yet.
  struct Half {
    uint64_t attempt = 0;
    std::array<std::unique_ptr<net::Stream>, kLanes> lanes;
  };
  std::map<MemberId, Half> half_;
  uint64_t attempts_ = 0;
  std::map<MemberId, std::unique_ptr<Link>> links_, quarantine_;
  std::map<MemberId, std::string> errors_, pods_;
  std::vector<Link*> by_rank_;
  uint32_t rank_ = 0;
};

// Double-buffered slots for the largest messages of a world, each in one slot: hooks never wait for
// room.
Geometry WholeMessages(const Format& format);

}  // namespace tangram::dispatch
