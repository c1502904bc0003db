#include "agent/simulation/agent.h"

#include <fmt/format.h>

#include <utility>

#include "agent/simulation/engine.h"
#include "agent/simulation/plan.h"
#include "agent/simulation/world.h"

namespace tangram::simulation {
namespace {

constexpr uint32_t kSpareBanks = 2;
constexpr uint64_t kPoolPages = 1024;
constexpr Nanos kPeerAnswers = 500 * kMillisecond;

loader::testing::ModelShape Shape() {
  loader::testing::ModelShape shape;
  shape.layers = 2;
  shape.experts = 4;
  shape.moe_inner = 16;
  shape.hidden = 16;
  shape.head_dim = 8;
  return shape;
}

// The result of a call without a reply.
Status Away() { return {Code::kUnavailable, "away"}; }

}  // namespace

Model::Model() {
  loader::testing::WriteCheckpoint(folder.path(), Shape(), loader::testing::MakeTensors(Shape(), 1),
                                   1);
  checkpoint = loader::Checkpoint::Open(folder.path(), 8, 4096).value();
  device::PlatformOptions options;
  options.name = "ghost";
  options.sizes_only = true;
  platform = device::MakePlatform(options).value();
  banks = checkpoint->geometry().moe_layers() + kSpareBanks;
}

const Model& Model::Get() {
  static const Model model;
  return model;
}

Status SlowMemory::Prepare(uint64_t attempt, const v1::Layout& target, int32_t rank,
                           const v1::RankPart& part) {
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  if (world_->Fails(40)) return {Code::kNoMemory, "no memory"};
  return store_->Prepare(attempt, target, rank, part);
}

Status SlowMemory::Stage(const v1::Header& header, const Origins& origins, StageProgress* progress,
                         std::stop_token stop) {
  const Nanos takes = world_->dice().Between(0, 300 * kMillisecond);
  for (Nanos at = 0; at < takes && !stop.stop_requested(); at += 20 * kMillisecond) {
    world_->time().Sleep(20 * kMillisecond);
  }
  if (world_->Fails(25)) return {Code::kUnavailable, "no source"};
  return store_->Stage(header, origins, progress, std::move(stop));
}

Status SlowMemory::Commit() {
  world_->time().Sleep(world_->dice().Between(0, 10 * kMillisecond));
  if (world_->Fails(60)) {
    world_->checker.Failed({});
    return {Code::kInternal, "memory does not commit"};
  }
  return store_->Commit();
}

void SlowMemory::Abort() {
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  store_->Abort();
}

Status SlowMemory::Retire() {
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  return store_->Retire();
}

void SlowMemory::Keep() {
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  store_->Keep();
}

void SlowMemory::Reset(const std::string& member) {
  world_->time().Sleep(world_->dice().Between(0, 5 * kMillisecond));
  store_->Reset(member);
}

// The engines' socket. A dead agent does not reply.
class Agent::Sockets final : public Engines {
 public:
  explicit Sockets(Agent* agent) : agent_(agent) {}

  EngineInfo Info(uint32_t device) override {
    const Engine& engine = *agent_->engines[device];
    EngineInfo info;
    info.attached = agent_->alive && engine.attached();
    info.incarnation = engine.incarnation();
    info.capabilities.set_mixed_layouts(true);
    return info;
  }
  Status Prepare(uint32_t device, const v1::EnginePrepare& prepare, std::stop_token) override {
    return Ask(device, [prepare](Engine& engine) { return engine.Prepared(prepare); });
  }
  Status Map(uint32_t device, const v1::Header&, EngineMappings, std::stop_token) override {
    return Ask(device, [](Engine&) { return OkStatus(); });
  }
  Status Unmap(uint32_t device, const v1::EngineUnmap&) override {
    return Ask(device, [](Engine&) { return OkStatus(); });
  }
  void Abort(uint32_t device, const v1::EngineAbort& abort) override {
    if (!agent_->alive) return;
    agent_->engines[device]->Tell(
        [attempt = abort.header().attempt()](Engine& engine) { engine.Aborted(attempt); });
  }
  void Dismiss(uint32_t device, const std::string&) override {
    Engine& engine = *agent_->engines[device];
    if (!agent_->alive || !engine.attached()) return;
    const uint64_t incarnation = engine.incarnation();
    engine.Tell([](Engine& told) { told.Dismissed(); });
    Scheduler& time = *Scheduler::Active();
    const Nanos until = time.now() + kSecond;
    while (agent_->alive && engine.attached() && engine.incarnation() == incarnation &&
           time.now() < until) {
      time.Sleep(10 * kMillisecond);
    }
    // Disconnected: an unresponsive engine finds its socket closed when it continues.
    if (agent_->alive && engine.attached() && engine.incarnation() == incarnation) engine.Kill();
  }

 private:
  Status Ask(uint32_t device, const std::function<Status(Engine&)>& what) {
    Engine& engine = *agent_->engines[device];
    Status answer = Away();
    if (!agent_->alive || !engine.attached()) return answer;
    (void)engine.Ask(what, &answer);
    return agent_->alive ? answer : Away();
  }

  Agent* const agent_;
};

// Calls to other agents, each in its own fiber.
class Agent::Lines final : public Peers {
 public:
  Lines(World* world, Agent* agent) : world_(world), agent_(agent) {}

  void Query(const std::string& to, const v1::QueryRequest& request, std::stop_token,
             Answered answered) override {
    Start("query", [this, to, request, answered = std::move(answered)] {
      answered(Call<Result<v1::QueryResponse>>(
          to, "query", [request](Executor& executor) { return executor.Query(request); }));
    });
  }
  void Word(const std::string& to, const v1::VoteRequest& request, std::stop_token,
            Told told) override {
    Start("word", [this, to, request, told = std::move(told)] {
      told(Call<Status>(to, "word", [request, pod = agent_->pod](Executor& executor) {
        return executor.Word(request, pod);
      }));
    });
  }

 private:
  void Start(const char* tag, std::function<void()> work) {
    world_->time().Spawn(agent_->number, tag, std::move(work));
  }
  template <typename Answer>
  Answer Call(const std::string& to, const char* name, std::function<Answer(Executor&)> call) {
    Agent* other = world_->AgentOf(to);
    if (other == nullptr || !agent_->alive) return Away();
    return world_->Call<Answer>(agent_->number, other, name, kPeerAnswers, std::move(call), Away());
  }

  World* const world_;
  Agent* const agent_;
};

Agent::Agent(World* world, int pod_number, uint32_t ranks)
    : number(pod_number),
      pod(fmt::format("pod-{}", pod_number)),
      address(fmt::format("agent-{}", pod_number)),
      world_(world),
      sockets_(std::make_unique<Sockets>(this)),
      lines_(std::make_unique<Lines>(world, this)) {
  const Model& model = Model::Get();
  std::vector<Executor::Local> locals;
  for (uint32_t device = 0; device < ranks; ++device) {
    store::RankStore::Options options;
    options.member = fmt::format("{}/{}/1", pod, device);
    options.checkpoint = model.checkpoint;
    options.platform = model.platform;
    options.banks = model.banks;
    options.pool_bytes = kPoolPages * 4096;
    options.kv_bytes = 4096;
    options.control_bytes = 8192;
    options.grants = &grants;
    // Pulls go from store to store: the bulk connection is not simulated.
    options.opener = [](const std::string&, const v1::OpenPullRequest&,
                        const std::stop_token&) -> Result<v1::OpenPullResponse> { return Away(); };
    options.sibling = [this](const std::string& id) -> store::RankStore* {
      for (const auto& other : world_->agents) {
        if (!other->alive || world_->Cut(number, other->number)) continue;
        for (const auto& memory : other->memories) {
          if (memory->store().member() == id) return &memory->store();
        }
      }
      return nullptr;
    };
    memories.push_back(
        std::make_unique<SlowMemory>(world, store::RankStore::Create(std::move(options)).value()));
    pages_.push_back(static_cast<GatePage*>(memories.back()->store().Regions().control_page));
    Executor::Local& local = locals.emplace_back();
    local.member.set_id(memories.back()->store().member());
    local.member.set_pod(pod);
    local.member.set_node(pod);
    local.memory = memories.back().get();
  }
  Executor::Options options;
  options.world = kWorld;
  options.pod = pod;
  options.address.set_agent(address);
  options.abort_wait = std::chrono::milliseconds(400);
  options.permit_wait = std::chrono::milliseconds(500);
  executor = std::make_unique<Executor>(std::move(options), model.checkpoint->geometry(),
                                        std::move(locals), sockets_.get(), lines_.get());
  for (uint32_t device = 0; device < ranks; ++device) {
    engines.push_back(std::make_unique<Engine>(world, this, device));
  }
}

Agent::~Agent() = default;

void Agent::EngineGone(uint32_t device) {
  if (!alive) return;
  ++handlers;
  world_->time().Spawn(number, "engine gone", [this, device] {
    executor->EngineGone(device);
    --handlers;
    world_->time().Wake(&handlers);
  });
}

void Agent::Die() {
  alive = false;
  Scheduler& time = world_->time();
  for (const auto& engine : engines) {
    const int process = engine->process();
    if (process == 0) continue;
    engine->Kill();
    (void)time.RunAlone(process, [&] { return time.Count(process) == 0; });
  }
  if (!time.RunAlone(number, [&] { return handlers == 0; })) {
    world_->checker.Wrong("NEVER_STUCK", "a call to " + pod + " has no end");
    return;
  }
  time.Spawn(number, "end", [this] { executor.reset(); });
  if (!time.RunAlone(number, [&] { return time.Count(number) == 0; })) {
    world_->checker.Wrong("NEVER_STUCK", pod + " does not end");
  }
}

}  // namespace tangram::simulation
