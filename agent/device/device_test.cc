// Every backend passes the same suite.
#include "agent/device/conformance.h"
#include "agent/device/ghost.h"
#include "agent/device/host.h"
#include "agent/device/platform.h"

namespace tangram::device {
namespace {

struct Host {
  static constexpr uint64_t kUnit = 4096;
  static constexpr bool kBytes = true;
  static constexpr bool kReadOnlyExports = true;
  static constexpr Pages kPages{};
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    auto made = HostDevice::Make({"test", bytes, /*read_only=*/true, kPages});
    if (!made.ok()) return nullptr;
    return std::move(made).value();
  }
  static std::unique_ptr<Device> Importer() { return HostDevice::Importer(kPages); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DeviceConformance, Host);

// Requests huge pages for every mapping, which a kernel may refuse; nothing else may differ.
struct TransparentHost {
  static constexpr uint64_t kUnit = 4096;
  static constexpr bool kBytes = true;
  static constexpr bool kReadOnlyExports = true;
  static constexpr Pages kPages{PageKind::kTransparent, 4096, 2 << 20};
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    auto made = HostDevice::Make({"test", bytes, /*read_only=*/true, kPages});
    if (!made.ok()) return nullptr;
    return std::move(made).value();
  }
  static std::unique_ptr<Device> Importer() { return HostDevice::Importer(kPages); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(TransparentHost, DeviceConformance, TransparentHost);

// Memory in handles of three pages, and one page in the last.
struct ScatteredHost {
  static constexpr uint64_t kUnit = 4096;
  static constexpr bool kBytes = true;
  static constexpr bool kReadOnlyExports = true;
  static constexpr Pages kPages{};
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    auto made = HostDevice::Make({"test", bytes, /*read_only=*/true, kPages, 3 * kUnit});
    if (!made.ok()) return nullptr;
    return std::move(made).value();
  }
  static std::unique_ptr<Device> Importer() { return HostDevice::Importer(kPages); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(ScatteredHost, DeviceConformance, ScatteredHost);

struct Ghost {
  static constexpr uint64_t kUnit = 2 << 20;
  static constexpr bool kBytes = false;
  static constexpr bool kReadOnlyExports = false;  // no process reads or writes there
  static std::unique_ptr<Device> Make(uint64_t bytes) {
    return std::make_unique<GhostDevice>(bytes, kUnit);
  }
  static std::unique_ptr<Device> Importer() { return std::make_unique<GhostDevice>(0, kUnit); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Ghost, DeviceConformance, Ghost);

TEST(Event, IsNotDoneWhenNeverRecorded) {
  const Event never;
  EXPECT_FALSE(never.Done());
  EXPECT_EQ(never.Wait().code(), Code::kInternal);
  const Event over = Event::Finished({Code::kCorrupt, "x"});
  EXPECT_TRUE(over.Done());
  EXPECT_EQ(over.Wait().code(), Code::kCorrupt);
}

TEST(Memory, IsAccessibleWhenOwnedByProcess) {
  std::array<std::byte, 4> bytes{};
  const Memory memory = Memory::Own(bytes);
  View(memory.Part(2, 1))[0] = std::byte{7};
  EXPECT_EQ(bytes[2], std::byte{7});
}

TEST(GhostDevice, CountsCopiesWithoutAccessibleMemory) {
  GhostDevice device(1 << 30, 4096);
  auto whole = MapWhole(device);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const Memory memory{&device, whole->first->address(), 1 << 29};
  const CopyOp op{memory, memory.Part(1 << 29, 1 << 29)};
  EXPECT_TRUE(device.Copy({&op, 1}).Wait().ok());
  EXPECT_EQ(device.copied(), uint64_t{1} << 29);
  EXPECT_TRUE(View(memory).empty());
}

TEST(Platform, RejectsUnknownPlatformAndListsAvailable) {
  const auto none = MakePlatform({.name = "abacus"});
  EXPECT_EQ(none.status().code(), Code::kInvalid);
  EXPECT_NE(none.status().message().find("available: host, cuda"), std::string::npos);
  EXPECT_EQ(MakePlatform({.map_bytes = 1024}).status().code(), Code::kInvalid)
      << "no machine maps so little";
  const Status odd = MakePlatform({.map_bytes = 8192, .descriptor_bytes = 12288}).status();
  EXPECT_EQ(odd.code(), Code::kInvalid) << "what is mapped at once would lie in two of them";
  const Status ghost = MakePlatform({.name = "ghost"}).status();
  EXPECT_EQ(ghost.code(), Code::kInvalid) << "an agent serves nobody from sizes";
  EXPECT_NE(ghost.message().find("available: host, cuda"), std::string::npos);
}

TEST(Platform, ControlMemoryIsAlwaysAccessible) {
  for (const char* name : {"host", "ghost"}) {
    auto platform = MakePlatform({.name = name, .sizes_only = true});
    ASSERT_TRUE(platform.ok()) << platform.status().message();
    EXPECT_STREQ((*platform)->name(), name);
    auto devices = (*platform)->Make("rank", {1 << 16, 1 << 16, 1 << 12});
    ASSERT_TRUE(devices.ok()) << devices.status().message();
    EXPECT_EQ(devices->weights->total_bytes(), 1U << 16);
    auto control = MapWhole(*devices->control);
    ASSERT_TRUE(control.ok());
    EXPECT_EQ(View({devices->control.get(), control->first->address(), 4096}).size(), 4096U);
  }
}

}  // namespace
}  // namespace tangram::device
