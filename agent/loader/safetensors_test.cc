// Every false claim of a safetensors header is rejected, with file and tensor.
#include "agent/loader/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <time.h>

#include "agent/loader/testing/writer.h"

namespace tangram::loader {
namespace {

using testing::SerializeRaw;

Result<std::map<std::string, TensorInfo>> Parse(const std::string& file) {
  return ParseHeader(file, file.size(), "x.safetensors");
}

constexpr char kTwo[] = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                        R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST(Safetensors, ParsesHeader) {
  const std::string file = SerializeRaw(kTwo, std::string(32, 'x'));
  const auto parsed = Parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed->size(), 2U);
  const TensorInfo& b = parsed->at("b");
  EXPECT_EQ(b.dtype, v1::DTYPE_BF16);
  EXPECT_EQ(b.shape, (std::vector<uint64_t>{4}));
  EXPECT_EQ(b.begin, 8 + sizeof kTwo - 1 + 24);
  EXPECT_EQ(b.bytes, 8U);
}

TEST(Safetensors, AcceptsMetadataScalarsAndEmptyTensors) {
  const auto parsed = Parse(SerializeRaw(
      R"({"__metadata__":{"format":"pt"},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      "1234"));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->at("s").bytes, 4U);
  EXPECT_EQ(parsed->at("e").bytes, 0U);
}

// Processor seconds to read the header of `tensors` tensors.
double SecondsOf(size_t tensors) {
  std::string header = "{";
  for (size_t i = 0; i < tensors; ++i) {
    header += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, 4 * i, 4 * i + 4);
  }
  const std::string file = SerializeRaw(header + "}", std::string(4 * tensors, 'x'));
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  };
  const double begin = now();
  const auto parsed = Parse(file);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return now() - begin;
}

// DeepSeek-V3 has 45,000 tensors. Eight times as many take little more than eight times as long.
TEST(SafetensorsRealTime, ParsesInTimeLinearInTensors) {
  (void)SecondsOf(1000);
  EXPECT_LT(SecondsOf(16000), 24 * SecondsOf(2000));
}

struct Lie {
  const char* name;
  std::string header;
  size_t data;
  const char* says;  // part of the message
};

class Lies : public ::testing::TestWithParam<Lie> {};

TEST_P(Lies, AreRejectedWithFileAndReason) {
  const auto parsed = Parse(SerializeRaw(GetParam().header, std::string(GetParam().data, 'x')));
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), Code::kInvalid);
  EXPECT_NE(parsed.status().message().find("x.safetensors"), std::string::npos)
      << parsed.status().message();
  EXPECT_NE(parsed.status().message().find(GetParam().says), std::string::npos)
      << parsed.status().message();
}

std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

INSTANTIATE_TEST_SUITE_P(
    Header, Lies,
    ::testing::Values(
        Lie{"NoJson", "{\"a\":", 0, "JSON"}, Lie{"NoObject", "[1,2]", 0, "JSON"},
        Lie{"Empty", "", 0, "JSON"}, Lie{"Trailing", std::string(kTwo) + "{}", 32, "JSON"},
        Lie{"EntryIsNoObject", R"({"a":5})", 0, "'a'"},
        Lie{"NoShape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "'a'"},
        Lie{"UnknownType", One("\"F8_E9M9\"", "[4]", "[0,4]"), 4, "F8_E9M9"},
        Lie{"TypeIsNoString", One("7", "[1]", "[0,4]"), 4, "dtype"},
        Lie{"NegativeSize", One("\"F32\"", "[-1]", "[0,4]"), 4, "'a'"},
        Lie{"SizeIsNoNumber", One("\"F32\"", "[1.5]", "[0,6]"), 6, "'a'"},
        Lie{"ShapeOverflows", One("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "overflow"},
        // 2^32 * 2^32 * 4 wraps to 0 in 64 bits: the classic way around a length check.
        Lie{"TooManyDimensions", One("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "'a'"},
        Lie{"ShapeTooLong", One("\"F32\"", "[2]", "[0,4]"), 4, "8 bytes"},
        Lie{"ShapeTooShort", One("\"F32\"", "[1]", "[0,8]"), 8, "4 bytes"},
        Lie{"BeyondTheEnd", One("\"F32\"", "[2]", "[0,8]"), 7, "[0, 8]"},
        Lie{"Backwards", One("\"F32\"", "[0]", "[4,0]"), 4, "[4, 0]"},
        Lie{"HugeOffset", One("\"F32\"", "[1]", "[18446744073709551612,18446744073709551615]"), 4,
            "'a'"},
        Lie{"NegativeOffset", One("\"F32\"", "[1]", "[-4,0]"), 4, "data_offsets"},
        Lie{"ThreeOffsets", One("\"F32\"", "[1]", "[0,4,8]"), 8, "data_offsets"},
        Lie{"HoleAtTheStart", One("\"F32\"", "[1]", "[4,8]"), 8, "gap"},
        Lie{"HoleInside",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
            12, "'b'"},
        Lie{"HoleAtTheEnd", One("\"F32\"", "[1]", "[0,4]"), 9, "5 bytes"},
        Lie{"Overlap",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
            R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            12, "'b'"},
        Lie{"SamePlace",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            4, "over the tensor before"},
        Lie{"NameTwice",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            4, "duplicate key 'a'"},
        Lie{"KeyTwice", R"({"a":{"dtype":"F32","dtype":"BF16","shape":[1],"data_offsets":[0,4]}})",
            4, "duplicate key 'dtype'"},
        Lie{"Deep", std::string(100000, '[') + std::string(100000, ']'), 0, "nested"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Safetensors, EscapesNewlinesInErrors) {
  for (const std::string header :
       {R"({"a\nb":{"dtype":"F\n64","shape":[],"data_offsets":[0,4]}})",
        R"({"a\nb":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})", R"({"a\nb":1,"a\nb":2})"}) {
    const std::string why = Parse(SerializeRaw(header, "12345678")).status().message();
    EXPECT_NE(why.find(R"(a\nb)"), std::string::npos) << why;
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
  }
}

TEST(Safetensors, RejectsEveryTruncation) {
  const std::string file = SerializeRaw(kTwo, std::string(32, 'x'));
  for (size_t size = 0; size < file.size(); ++size) {
    const auto parsed = Parse(file.substr(0, size));
    ASSERT_FALSE(parsed.ok()) << "cut to " << size << " of " << file.size();
    ASSERT_EQ(parsed.status().code(), Code::kInvalid);
  }
}

TEST(Safetensors, RejectsHeaderLengthAboveFileSizeOrLimit) {
  std::string file = SerializeRaw(kTwo, std::string(32, 'x'));
  for (const int byte : {2, 3, 5, 7}) {
    std::string lying = file;
    lying[static_cast<size_t>(byte)] = '\x7f';
    const auto length = HeaderBytes(lying, lying.size(), "x.safetensors");
    ASSERT_FALSE(length.ok());
    EXPECT_NE(length.status().message().find(std::to_string(lying.size() - 8)), std::string::npos)
        << length.status().message();
  }
  // Above the limit, even if the file is that large.
  const std::string huge("\x01\x00\x00\x04\x00\x00\x00\x00", 8);  // 64 MiB + 1
  EXPECT_FALSE(HeaderBytes(huge, 1ULL << 40, "x.safetensors").ok());
}

}  // namespace
}  // namespace tangram::loader
