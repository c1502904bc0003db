// A configuration file and overrides: arbitrary bytes, or a valid file with arbitrary lines. It is
// rejected with an error that names the file, or satisfies the assumptions of its readers.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>

#include "agent/net/address.h"
#include "agent/server/config.h"

namespace {

constexpr const char* kSound[][2] = {{"world", "demo"},
                                     {"pod", "pod-0"},
                                     {"pod_uid", "abc"},
                                     {"node", "n"},
                                     {"memory_bytes", "1000"},
                                     {"kv_bytes", "1000"},
                                     {"granule_rows", "16"},
                                     {"slab_format", "row-major"},
                                     {"checkpoint", "/m"},
                                     {"revision", "r1"},
                                     {"listen", "127.0.0.1:0"},
                                     {"data_listen", "127.0.0.1:0"},
                                     {"engine_socket", "/s"},
                                     {"engine_token_file", "/t"},
                                     {"tls", "{ca: a, cert: b, key: c}"},
                                     {"incarnation", "1"},
                                     {"ranks", "2"},
                                     {"spare_banks", "1"},
                                     {"advertise", "h"},
                                     {"metrics_listen", "[::1]:0"},
                                     {"in_world_file", "/w"},
                                     {"insecure_fabric", "true"},
                                     {"log", "{level: info, json: false}"}};

std::string Text(FuzzedDataProvider& in) {
  if (in.ConsumeBool()) return in.ConsumeRandomLengthString();
  const size_t damaged = in.ConsumeIntegralInRange<size_t>(0, std::size(kSound));
  std::string out;
  for (size_t i = 0; i < std::size(kSound); ++i) {
    const std::string value = i == damaged ? in.ConsumeRandomLengthString() : kSound[i][1];
    out += std::string(kSound[i][0]) + ": " + value + "\n";
  }
  return out + in.ConsumeRandomLengthString();
}

void Want(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  const std::string text = Text(in);
  tangram::Overrides overrides;
  while (in.remaining_bytes() > 0) overrides.push_back(in.ConsumeRandomLengthString());
  const auto config = tangram::ParseConfig(text, "f.yaml", overrides);
  if (!config.ok()) {
    const std::string why = config.status().message();
    Want(config.status().code() == tangram::Code::kInvalid);
    Want(why.rfind("f.yaml", 0) == 0 || why.rfind("--set ", 0) == 0);
    return 0;
  }
  for (const std::string* name : {&config->world, &config->pod, &config->pod_uid}) {
    Want(!name->empty() && name->find_first_of("/ \n") == std::string::npos);
  }
  Want(config->ranks >= 1 && config->ranks <= 64);
  Want(config->granule_rows <= 1 << 20 && config->spare_banks >= 1);
  Want(config->memory_bytes >= 1 && config->memory_bytes <= uint64_t{1} << 46);
  Want(config->kv_bytes >= 1 && config->kv_bytes <= uint64_t{1} << 46);
  // The kernel would read these up to their first NUL.
  for (const std::string* path :
       {&config->checkpoint, &config->engine_socket, &config->engine_token_file,
        &config->ready_file, &config->in_world_file, &config->hashes_file, &config->tls.ca,
        &config->tls.cert, &config->tls.key}) {
    Want(path->find('\0') == std::string::npos);
  }
  Want(!config->advertise.empty() && !config->engine_token_file.empty());
  Want(!config->tls.ca.empty() && !config->tls.cert.empty() && !config->tls.key.empty());
  Want(tangram::net::ParseHostPort(config->listen).ok());
  Want(tangram::net::ParseHostPort(config->data_listen).ok());
  return 0;
}
