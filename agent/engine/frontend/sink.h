// The step thread's output: replies for gateways. Calls never block.
#pragma once

#include <map>
#include <string>

#include "tangram/v1/serve.pb.h"

namespace tangram::engine {

class Sink {
 public:
  virtual ~Sink() = default;
  // To the session of this gateway, now or after it has connected to this rank.
  virtual void Emit(const std::string& gateway, v1::Token token) = 0;
  virtual void Refuse(const std::string& gateway, v1::Refused refused) = 0;
  // To all sessions; new ones get the last of each immediately. `rosters`: by gateway, its requests
  // whose home is this member, `self`; a gateway without an entry has none.
  virtual void SetWorld(v1::World world, const std::string& self,
                        std::map<std::string, v1::Roster> rosters) = 0;
  virtual void SetLoad(v1::Load load) = 0;
};

}  // namespace tangram::engine
