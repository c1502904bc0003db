#include "agent/engine/mesh/wire.h"

#include <cstring>

namespace tangram::engine {

Result<size_t> PayloadBytes(std::span<const std::byte> bytes, uint64_t most) {
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != FrameHeader::kMagic) {
    return Status{Code::kInvalid, "not a mesh frame (magic " + std::to_string(header.magic) + ")"};
  }
  if (header.length > most) {
    return Status{Code::kInvalid, "frame of " + std::to_string(header.length) +
                                      " bytes exceeds the maximum of " + std::to_string(most) +
                                      " bytes"};
  }
  return size_t{header.length};
}

Bytes Hello::Encode() const {
  ByteWriter writer;
  writer.PutString(world);
  writer.PutString(from);
  writer.PutString(to);
  return writer.Take();
}

Result<Hello> Hello::Decode(const Bytes& payload) {
  ByteReader reader(payload);
  Hello out;
  out.world = reader.GetString();
  out.from = reader.GetString();
  out.to = reader.GetString();
  if (!reader.done()) return Status{Code::kInvalid, "malformed hello"};
  return out;
}

}  // namespace tangram::engine
