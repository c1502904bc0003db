// What the recording NCCL knows. Private to its sources.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/unique_fd.h"
#include "agent/device/nccl_library.h"
#include "agent/device/testing/fake_cuda.h"
#include "agent/device/testing/fake_nccl.h"

namespace tangram::device::testing {

// A message of one end to the other: what was sent, or that it was received.
struct FakeMessage {
  uint64_t received = 0;  // 1: this says so, and has no bytes
  uint64_t number = 0;    // of those of its direction
  uint64_t bytes = 0;
};

// The connection of the two ends of a communicator. Nothing here blocks.
class FakePair {
 public:
  explicit FakePair(UniqueFd socket) : socket_(std::move(socket)) {}
  // Writes and reads what goes now. False: the other end is gone.
  bool Pump();
  void Say(const FakeMessage& message, const std::vector<std::byte>& bytes);
  // Takes the message of that number, if it has come whole.
  bool Take(uint64_t number, std::vector<std::byte>* bytes);
  bool Received(uint64_t number) const { return received_ >= number; }
  // What the ends tell each other first; false: not yet.
  bool Meet(std::array<int, 2> mine, std::array<int, 2>* theirs);

 private:
  UniqueFd socket_;
  std::vector<std::byte> out_, in_;
  size_t out_at_ = 0;
  bool met_ = false, told_ = false;
  uint64_t received_ = 0;
  std::map<uint64_t, std::vector<std::byte>> came_;
};

// A call of a group that was not put on its stream yet.
struct FakeCall {
  uint64_t address = 0, bytes = 0;
  bool sends = false;
  CUstream stream = nullptr;
};

struct FakeComm {
  std::mutex mu;  // taken while the driver runs kernels: the driver is not called under it
  int rank = 0;
  std::string name;  // of the id
  std::unique_ptr<FakePair> pair;
  bool connected = false, aborted = false;
  NcclResult error = kNcclSuccess;
  std::vector<FakeCall> calls;  // of a group that ended
  int looks = 0;                // at errors since: two, and they are on the stream
  std::thread::id group;        // whose group, not ended, has calls of it
  uint64_t sent = 0, received = 0;
  uint64_t running = 0;  // kernels that were put on `stream` and did not end
  CUstream stream = nullptr;
};
using FakeCommPtr = std::shared_ptr<FakeComm>;

struct FakeNcclState {
  std::mutex complaint_mu;  // some complain under the other
  std::string complaint;
  std::mutex mu;  // of what follows; a communicator's is taken before it, never under it
  FakeNcclOptions options;
  std::map<std::string, UniqueFd> offered;  // by the id's name: who connects to it comes here
  std::map<NcclComm, FakeCommPtr> comms;    // also those that were aborted
  uint64_t kernels = 0, hangs = 0, at_once = 0, most_at_once = 0;
};

FakeNcclState& NcclState();
NcclResult Complain(NcclResult result, const std::string& why);
// Goes on with connecting; the error is the communicator's.
void Connect(FakeComm* comm);
// Puts the calls of the last group on their streams.
void LaunchCalls(const FakeCommPtr& comm);

}  // namespace tangram::device::testing
