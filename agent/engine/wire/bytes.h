// Little-endian records in memory, which engines of one build send each other through the mesh.
// Host order is little-endian on every platform the engine runs on.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tangram::engine {

using Bytes = std::vector<uint8_t>;

class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* raw = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof(T));
  }
  // Count, then the elements.
  template <typename T>
  void PutVector(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put<uint64_t>(values.size());
    PutRaw(values.data(), values.size() * sizeof(T));
  }
  void PutString(std::string_view text) {
    Put<uint64_t>(text.size());
    PutRaw(text.data(), text.size());
  }
  void PutRaw(const void* data, size_t size) {
    const auto* raw = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), raw, raw + size);
  }
  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Reads the output of ByteWriter. After a read past the end every value is zero or empty and ok()
// is false: check it once, at the end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const uint8_t* raw = GetRaw(sizeof(T))) std::memcpy(&value, raw, sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> GetVector() {
    const uint64_t count = Get<uint64_t>();
    if (!ok_ || count > bytes_.size() / sizeof(T)) {
      ok_ = false;
      return {};
    }
    std::vector<T> values(count);
    if (const uint8_t* raw = GetRaw(count * sizeof(T)); raw != nullptr && count > 0) {
      std::memcpy(values.data(), raw, count * sizeof(T));
    }
    return values;
  }
  std::string GetString() {
    const std::vector<char> text = GetVector<char>();
    return {text.begin(), text.end()};
  }
  // The next `size` bytes in place, or nullptr.
  const uint8_t* GetRaw(size_t size) {
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return nullptr;
    }
    const uint8_t* raw = bytes_.data();
    bytes_ = bytes_.subspan(size);
    return raw;
  }
  bool ok() const { return ok_; }
  // Everything was read and no bytes are left over.
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const uint8_t> bytes_;
  bool ok_ = true;
};

}  // namespace tangram::engine
