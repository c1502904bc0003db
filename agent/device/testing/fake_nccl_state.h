// State of the recording NCCL. Private to its sources.
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

// A message from one end to the other: sent bytes, or a confirmation.
struct FakeMessage {
  uint64_t received = 0;  // 1: a confirmation, without bytes
  uint64_t number = 0;    // index within its direction
  uint64_t bytes = 0;
};

// The connection between the two ends of a communicator. Never blocks.
class FakePair {
 public:
  explicit FakePair(UniqueFd socket) : socket_(std::move(socket)) {}
  // Writes and reads what is possible now. False: the other end was lost.
  bool Pump();
  void Say(const FakeMessage& message, const std::vector<std::byte>& bytes);
  // Takes the message of that number, if all of it has arrived.
  bool Take(uint64_t number, std::vector<std::byte>* bytes);
  bool Received(uint64_t number) const { return received_ >= number; }
  // Exchanges the first data of both ends; false: not yet.
  bool Meet(std::array<int, 2> mine, std::array<int, 2>* theirs);

 private:
  UniqueFd socket_;
  std::vector<std::byte> out_, in_;
  size_t out_at_ = 0;
  bool met_ = false, told_ = false;
  uint64_t received_ = 0;
  std::map<uint64_t, std::vector<std::byte>> came_;
};

// A call of a group, not yet put on its stream.
struct FakeCall {
  uint64_t address = 0, bytes = 0;
  bool sends = false;
  CUstream stream = nullptr;
};

struct FakeComm {
  std::mutex mu;  // held while the driver runs kernels, so do not call the driver under it
  int rank = 0;
  std::string name;  // of the id
  std::unique_ptr<FakePair> pair;
  bool connected = false, aborted = false;
  NcclResult error = kNcclSuccess;
  std::vector<FakeCall> calls;  // of a finished group
  int looks = 0;          // queries of the error since then: after two, they are on the stream
  std::thread::id group;  // the thread whose open group has calls of it
  uint64_t sent = 0, received = 0;
  uint64_t running = 0;  // kernels on `stream` that have not ended
  CUstream stream = nullptr;
};
using FakeCommPtr = std::shared_ptr<FakeComm>;

struct FakeNcclState {
  std::mutex complaint_mu;  // complaints may occur under the other one
  std::string complaint;
  std::mutex mu;  // guards the members below; taken after a communicator's, never before
  FakeNcclOptions options;
  std::map<std::string, UniqueFd> offered;  // listening sockets, by the id's name
  std::map<NcclComm, FakeCommPtr> comms;    // including aborted ones
  uint64_t kernels = 0, hangs = 0, at_once = 0, most_at_once = 0;
};

FakeNcclState& NcclState();
NcclResult Complain(NcclResult result, const std::string& why);
// Continues to connect; an error becomes the communicator's.
void Connect(FakeComm* comm);
// Puts the calls of the last group on their streams.
void LaunchCalls(const FakeCommPtr& comm);

}  // namespace tangram::device::testing
