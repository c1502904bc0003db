#include "agent/engine/turn/control.h"

#include <string>

namespace tangram::engine {

Bytes Control::Encode() const {
  ByteWriter writer;
  writer.Put(word);
  writer.Put<uint8_t>(pending ? 1 : 0);
  writer.Put<uint8_t>(work ? 1 : 0);
  writer.Put<uint8_t>(pause ? 1 : 0);
  writer.Put(rows);
  writer.PutVector(text);
  return writer.Take();
}

Result<Control> Control::Decode(const Bytes& bytes) {
  ByteReader reader(bytes);
  Control out;
  out.word = reader.Get<tg_vote>();
  out.pending = reader.Get<uint8_t>() != 0;
  out.work = reader.Get<uint8_t>() != 0;
  out.pause = reader.Get<uint8_t>() != 0;
  out.rows = reader.Get<uint64_t>();
  out.text = reader.GetVector<uint8_t>();
  if (!reader.done()) return Status{Code::kInternal, "malformed control message"};
  if (out.rows > kMostRows) {
    return Status{Code::kInternal, "control message: a step of " + std::to_string(out.rows) +
                                       " rows, of at most " + std::to_string(kMostRows)};
  }
  return out;
}

}  // namespace tangram::engine
