#include "agent/store/hash_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tangram::store {
namespace {

constexpr uint64_t kHeader = SHA256_DIGEST_LENGTH;  // identifies the table's subject

uint64_t IndexOf(const layout::GeometryView& geometry, uint32_t layer, uint32_t expert) {
  return static_cast<uint64_t>(geometry.ordinal(layer)) * geometry.experts() + expert;
}

uint64_t IndexOf(const layout::GeometryView& geometry, uint32_t layer, uint32_t expert,
                 uint32_t granule) {
  return IndexOf(geometry, layer, expert) * geometry.granules() + granule;
}

uint64_t ExpertsOf(const layout::GeometryView& geometry) {
  return uint64_t{geometry.moe_layers()} * geometry.experts();
}

uint64_t GranulesOf(const layout::GeometryView& geometry) {
  return ExpertsOf(geometry) * geometry.granules();
}

uint64_t TailsOf(const layout::GeometryView& geometry) {
  return geometry.tail_bytes() > 0 ? ExpertsOf(geometry) : 0;
}

Status Failed(const char* call, const std::string& path, Code code) {
  return {code, fmt::format("hashes_file: cannot {} {}: {}", call, path, std::strerror(errno))};
}

bool ReadAll(int fd, void* to, uint64_t bytes, uint64_t offset) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (n <= 0) {
      if (n == 0) errno = ENODATA;
      return false;
    }
    at += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<HashFile>> HashFile::Open(const std::string& path,
                                                 const std::string& revision,
                                                 const layout::GeometryView& geometry,
                                                 size_t dense_tensors) {
  std::unique_ptr<HashFile> file(new HashFile(path, geometry, dense_tensors));
  const std::string about =
      fmt::format("tangram hashes 1 XXH3-64\n{}\n{}\n{}", layout::Hex(geometry.fingerprint()),
                  dense_tensors, revision);
  unsigned char want[kHeader], have[kHeader];
  SHA256(reinterpret_cast<const unsigned char*>(about.data()), about.size(), want);
  const uint64_t bytes =
      kHeader + (GranulesOf(geometry) + TailsOf(geometry) + dense_tensors) * sizeof(uint64_t);
  file->fd_.reset(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file->fd_) return Failed("open", path, Code::kInvalid);
  const int fd = file->fd_.get();
  struct stat info {};
  if (fstat(fd, &info) != 0) return Failed("stat", path, Code::kInvalid);
  if (static_cast<uint64_t>(info.st_size) == bytes && ReadAll(fd, have, kHeader, 0) &&
      std::memcmp(want, have, kHeader) == 0) {
    return file;
  }
  // The header is written last: an incomplete file is invalid.
  if (ftruncate(fd, 0) != 0) return Failed("truncate", path, Code::kInvalid);
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    errno = error;
    return Failed("allocate space for", path, Code::kInvalid);
  }
  if (pwrite(fd, want, kHeader, 0) != static_cast<ssize_t>(kHeader)) {
    return Failed("write", path, Code::kInvalid);
  }
  return file;
}

Status HashFile::Write(uint64_t index, std::span<const uint64_t> hashes) {
  const auto bytes = static_cast<ssize_t>(hashes.size_bytes());
  const auto offset = static_cast<off_t>(kHeader + index * sizeof(uint64_t));
  if (pwrite(fd_.get(), hashes.data(), hashes.size_bytes(), offset) != bytes) {
    return Failed("write", path_, Code::kInternal);
  }
  return OkStatus();
}

Status HashFile::Note(uint32_t layer, uint32_t expert, uint32_t start,
                      std::span<const uint64_t> hashes) {
  return Write(IndexOf(geometry_, layer, expert, start), hashes);
}

Status HashFile::NoteTail(uint32_t layer, uint32_t expert, uint64_t hash) {
  return Write(GranulesOf(geometry_) + IndexOf(geometry_, layer, expert), {&hash, 1});
}

Status HashFile::NoteDense(size_t tensor, uint64_t hash) {
  return Write(GranulesOf(geometry_) + TailsOf(geometry_) + tensor, {&hash, 1});
}

Result<HashFile::Noted> HashFile::Read() const {
  Noted out;
  out.geometry = &geometry_;
  out.granules.resize(GranulesOf(geometry_));
  out.tails.resize(TailsOf(geometry_));
  out.dense.resize(dense_tensors_);
  uint64_t at = kHeader;
  for (std::vector<uint64_t>* hashes : {&out.granules, &out.tails, &out.dense}) {
    const uint64_t bytes = hashes->size() * sizeof(uint64_t);
    if (!ReadAll(fd_.get(), hashes->data(), bytes, at)) {
      return Failed("read", path_, Code::kInternal);
    }
    at += bytes;
  }
  return out;
}

uint64_t HashFile::Noted::Granule(uint32_t layer, uint32_t expert, uint32_t granule) const {
  return granules[IndexOf(*geometry, layer, expert, granule)];
}

uint64_t HashFile::Noted::Tail(uint32_t layer, uint32_t expert) const {
  return tails[IndexOf(*geometry, layer, expert)];
}

}  // namespace tangram::store
