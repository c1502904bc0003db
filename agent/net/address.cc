#include "agent/net/address.h"

#include <charconv>

namespace tangram::net {

Result<HostPort> ParseHostPort(const std::string& text) {
  const auto bad = [&](const char* why) {
    return Status{Code::kInvalid, "must be host:port, is '" + text + "'" + why};
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return bad("");
  HostPort out;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, out.port);
  if (error != std::errc() || at != end) return bad("");
  out.host = text.substr(0, colon);
  const bool brackets = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
  if (brackets) out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty() || out.host.find_first_of("[]") != std::string::npos) return bad("");
  if (!brackets && out.host.find(':') != std::string::npos) {
    return bad(": write an IPv6 address in brackets, [::1]:80");
  }
  return out;
}

std::string JoinHostPort(std::string_view host, uint16_t port) {
  const bool bare = host.find(':') != host.npos && host.front() != '[';
  std::string out(bare ? "[" : "");
  return out.append(host).append(bare ? "]:" : ":").append(std::to_string(port));
}

}  // namespace tangram::net
