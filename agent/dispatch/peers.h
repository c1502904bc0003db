// The members of a world and the links with them: kept over epochs, made in advance for those that
// are about to join. One thread.
//
// Of a pair the smaller id dials: by shared memory where both are on one node, else by TCP. What a
// member that was given up may still write to stays mapped and is used for nothing else until
// somebody who knows says that it has ended.
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
  std::string node;      // those of one node share memory, if both have a `local`
  std::string local;     // unix:PATH, or empty
  std::string endpoint;  // host:port, or empty
  std::string pod;       // that its certificate must name, over TLS
};

class Peers final : public Links {
 public:
  // Listens where `self` says (of port 0 the one that was given: self()).
  static Result<std::unique_ptr<Peers>> Listen(Member self, const Format& format,
                                               const Geometry& geometry,
                                               std::shared_ptr<net::Credentials> credentials);
  ~Peers() override;

  const Member& self() const { return self_; }
  // Makes the links that are not there yet, and waits for them, for `limit` at most. All members
  // of the next world do so, beside their steps or between them. kUnavailable: these are missing,
  // and why. Links that stand are left as they are.
  Status Prepare(std::span<const Member> members, std::chrono::milliseconds limit);
  // The ranks from here on, by their place in the list, this member among them; who has no link is
  // a rank without one, and so is who ended or was given up. Links of others are given up: they are
  // quarantined. Makes and waits for nothing. kInvalid: this member is not in the list, or one is
  // twice.
  Status Enter(std::span<const MemberId> members);
  // The member's process is known to have ended: its memory is free.
  void Ended(const MemberId& id);
  bool GivenUp(const MemberId& id) const { return quarantine_.contains(id); }
  // Bytes of memory that members which were given up may still write to.
  uint64_t quarantined() const;

  uint32_t ranks() const override { return static_cast<uint32_t>(by_rank_.size()); }
  uint32_t rank() const override { return rank_; }
  Link* at(uint32_t rank) override { return by_rank_[rank]; }
  // By which way a rank is reached: "shared memory", "TCP"; of itself "here", else "none".
  const char* path(uint32_t rank) const;

 private:
  struct Greeting;  // a connection whose hellos are not both through
  Peers(Member self, const Format& format, const Geometry& geometry,
        std::shared_ptr<net::Credentials> credentials);
  Hello HelloTo(const MemberId& to, Hello::Path path, Lane lane, uint64_t attempt) const;
  Status Dial(const Member& to);
  Status Say(Greeting& greeting);
  void Accept(int listener, bool local);
  // Goes on; true once it is through or lost.
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
  // Of TCP: one lane stands, the other not yet.
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

// For a world's largest messages in one slot each, double buffered: hooks never wait for room.
Geometry WholeMessages(const Format& format);

}  // namespace tangram::dispatch
