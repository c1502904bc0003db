// Members of a world in threads of one process, over real links, compared with serial sums.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/dispatch/buffer.h"
#include "agent/dispatch/testing/layout.h"

namespace tangram::dispatch::testing {

enum class Path { kSharedMemory, kTcp };

// A folder for sockets, removed with this object.
class SocketFolder {
 public:
  SocketFolder() {
    std::string name = "/tmp/dispatch-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~SocketFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Member MemberOf(const SocketFolder& folder, Path path, const std::string& name,
                       uint64_t generation) {
  Member member;
  member.id = {name, generation};
  member.node = "here";
  if (path == Path::kSharedMemory)
    member.local = "unix:" + folder.path() + "/" + name + "-" + std::to_string(generation);
  else
    member.endpoint = "127.0.0.1:0";
  return member;
}

inline std::vector<MemberId> IdsOf(const std::vector<std::unique_ptr<Buffer>>& buffers) {
  std::vector<MemberId> ids;
  for (const auto& buffer : buffers) ids.push_back(buffer->self().id);
  return ids;
}

inline void OnEach(size_t count, const std::function<void(uint32_t)>& run) {
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < count; ++r) threads.emplace_back([&run, r] { run(r); });
  for (std::thread& thread : threads) thread.join();
}

// Connects all of them.
inline void Meet(std::vector<std::unique_ptr<Buffer>>& buffers) {
  std::vector<Member> members;
  for (const auto& buffer : buffers) members.push_back(buffer->self());
  OnEach(buffers.size(), [&](uint32_t r) {
    const Status met = buffers[r]->Prepare(members, std::chrono::seconds(30));
    EXPECT_TRUE(met.ok()) << met.message();
  });
}

inline std::shared_ptr<const Routes> RoutesOf(Layout& layout, uint32_t rank) {
  auto routes = Routes::Of(layout.Maps(rank), layout.model());
  EXPECT_TRUE(routes.ok()) << routes.status().message();
  return std::make_shared<const Routes>(std::move(*routes));
}

inline float FromBf16(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }
inline uint16_t ToBf16(float value) {
  uint16_t half = 0;
  Convert(Element::kF32, &value, 1, Element::kBf16, &half);
  return half;
}

// Rows of small integers.
struct Own {
  uint32_t count = 0;
  std::vector<float> x, weights;
  std::vector<int32_t> experts;
  std::vector<uint16_t> halves;

  Rows rows(Element element) const {
    const void* from = x.data();
    if (element == Element::kBf16) from = halves.data();
    return {count, from, experts.data(), weights.data()};
  }
};

inline Own DrawnRows(const Format& format, uint32_t count, std::mt19937& draw,
                     std::optional<int32_t> expert = std::nullopt) {
  Own own;
  own.count = count;
  for (uint32_t i = 0; i < count * format.hidden; ++i) {
    own.x.push_back(static_cast<float>(static_cast<int>(draw() % 15) - 7));
    own.halves.push_back(ToBf16(own.x.back()));
  }
  for (uint32_t i = 0; i < count * format.top_k; ++i) {
    own.experts.push_back(expert.value_or(static_cast<int32_t>(draw() % format.experts)));
    own.weights.push_back(static_cast<float>(1 + draw() % 3));
  }
  return own;
}

// An expert for tests: granule g of expert e returns (e % 3 + 1) * (g + 1) * x. So any wrong, lost
// or doubled piece shows, and sums of few of them are exact in every element.
inline float OfGranule(uint32_t expert, uint32_t granule, float x) {
  return static_cast<float>((expert % 3 + 1) * (granule + 1)) * x;
}

// The outputs of the experts here for the received rows: [rows, hidden].
inline void Compute(const Format& format, const LayerRoutes& layer, const Packed& packed,
                    void* outputs) {
  std::vector<float> x(format.hidden);
  std::vector<uint8_t> row(RowBytes(format.wire, format.hidden));
  const size_t numbers = format.hidden * BytesOf(format.wire);
  const size_t scales = ScalesOf(format.wire, format.hidden);
  size_t at = 0;
  for (size_t l = 0; l < packed.choices.size(); ++l) {
    for (uint32_t i = 0; i < packed.counts[l]; ++i, ++at) {
      std::memcpy(row.data(), static_cast<const uint8_t*>(packed.x) + at * numbers, numbers);
      if (scales > 0)
        std::memcpy(row.data() + row.size() - scales * sizeof(float), packed.scales + at * scales,
                    scales * sizeof(float));
      ToFloat(format.wire, row.data(), format.hidden, x.data());
      for (uint32_t h = 0; h < format.hidden; ++h) {
        float y = 0;
        for (const LocalPiece& piece : layer.PiecesOf(packed.choices[l]))
          for (uint32_t g = 0; g < piece.granule_count; ++g)
            y += OfGranule(piece.expert, piece.granule_start + g, x[h]);
        const size_t to = at * format.hidden + h;
        if (format.outputs() == Element::kBf16)
          static_cast<uint16_t*>(outputs)[to] = ToBf16(y);
        else
          static_cast<float*>(outputs)[to] = y;
      }
    }
  }
}

inline void Compute(const Exchange& exchange, const LayerRoutes& layer, const Handle& handle,
                    void* outputs) {
  Compute(exchange.format(), layer, exchange.packed(handle), outputs);
}

// The expected y without an exchange: each row through all granules of its experts, except those of
// `missing`; in doubles.
inline std::vector<double> Serial(const Format& format, uint32_t granules, const Own& own,
                                  const std::vector<Contribution>& missing = {}) {
  std::vector<double> y(own.x.size(), 0);
  for (uint32_t row = 0; row < own.count; ++row)
    for (uint32_t k = 0; k < format.top_k; ++k) {
      const int32_t e = own.experts[row * format.top_k + k];
      if (std::find(missing.begin(), missing.end(), Contribution{row, k, e}) != missing.end())
        continue;
      for (uint32_t g = 0; g < granules; ++g)
        for (uint32_t h = 0; h < format.hidden; ++h)
          y[row * format.hidden + h] +=
              own.weights[row * format.top_k + k] *
              OfGranule(static_cast<uint32_t>(e), g, own.x[row * format.hidden + h]);
    }
  return y;
}

// Converts y of a dispatch's format to doubles.
inline std::vector<double> Doubles(const Format& format, const void* y, size_t count) {
  std::vector<double> out(count);
  for (size_t i = 0; i < count; ++i) {
    if (format.sums == Element::kFixed)
      out[i] = std::ldexp(static_cast<double>(static_cast<const int64_t*>(y)[i]), -40);
    else if (format.sums == Element::kF32)
      out[i] = static_cast<const float*>(y)[i];
    else
      out[i] = FromBf16(static_cast<const uint16_t*>(y)[i]);
  }
  return out;
}

}  // namespace tangram::dispatch::testing
