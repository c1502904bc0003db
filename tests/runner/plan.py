"""The stages of each tier: `test` is CI, `check` comes before an issue is resolved, `nightly` is everything.

A tier is set-up and build, then lanes: the stages of a lane run one after another, and lanes run concurrently. All
worlds of processes are in one lane: their engines wait for each other in each step, so on two cores two worlds would
each take several times as long.
"""

import dataclasses
import pathlib
import re

from .stage import ROOT, Stage

SETUP, BUILD, UNIT, LINT, FIGURES, WALK, SMOKE, FLAKY, TIME = 10, 11, 12, 13, 14, 15, 16, 17, 18  # exit codes
CHECK = 19  # of a stage in check and nightly only

# Go collects garbage less often while it compiles (a fifth less processor time), but as usual in the tests. The linters
# run vet.
def go_test(module, args, env=""):
    return f"(cd {module} && GOGC=400 {env} go test -json -count=1 -vet=off -exec 'env -u GOGC' {args}) || rc=1"


def go_tests(*commands):
    return "; ".join([*commands, "exit ${rc:-0}"])


def ctest(folder, args):
    return f"ctest --test-dir build/{folder} -j3 {args} --output-on-failure --output-junit {{junit}}"


# Tests with this word in their names measure the clock or processor time: `make test` omits them.
REAL_TIME = "RealTime"

# The worlds of processes in `make test`: one of each kind, under load, with kill -9 of a pod, an engine, an agent and a
# driver. Some tests run only their first cases (worlds.Cases).
WALK_CORE = (
    "TestTour", "TestDeepSwitch", "TestPodDies", "TestEngineDiesAlone", "TestAgentDiesAlone", "TestDriverIsKilled", "TestAgentFailsInPhase",
    "TestGolden", "TestPlacements", "TestEnginesConform", "TestWorldOnGPUs", "TestPythonEngines", "TestStaleCalls", "TestWrongCertificates",
    "TestInvalidShapesAreRejected", "TestTooLittleMemory",
)

# The model in every state, and the shipped code against it. Tests that a missing rule breaks the proof are in check.
MODEL_CORE = "^(TestModel|TestModelOfCopiesAhead|TestModelOfPauses|TestGateReplaysModel|TestAttemptsReplayModel|TestModelFollowsSimulation)$"

SETUP_STAGE = Stage("setup", "WITH_CLUSTER=1 e2e/setup/install.sh", code=SETUP, online=True)
VLLM_STAGE = Stage("vllm-setup", "make -s vllm-setup", code=SETUP, online=True)
BUILD_STAGE = Stage("build", "make -s cxx go model && ninja -C build/cxx", code=BUILD)

# The processes of a world wait for each other, so worlds come first; stages that only compute use the remaining
# processor time.
COMPUTES = 15

TEST = (
    (
        Stage("go", go_tests(*(go_test(module, f"-timeout 20m -skip {REAL_TIME} ./...") for module in ("api", "operator", "e2e")),
                             go_test("e2e/cluster", f"-timeout 20m -skip {REAL_TIME} $(go list ./... | grep -v /clustertest)")), "go", UNIT, 5, COMPUTES, retry=True),
        Stage("api", go_tests(go_test("tests", "-timeout 20m ./api/... ./chart/... ./internal/... ./mutants/...")), "go", UNIT, 1, COMPUTES, retry=True),
        # after go, because it uses its compiled packages
        Stage("lint", "tests/lint.sh", code=LINT, minutes=5, nice=COMPUTES),
        Stage("scripts", "python3 tests/runner/runner_test.py && (cd tests && python3 -m unittest bench_test) && "
              "(cd tests/peers && ../../build/venv/bin/python -m unittest pair_test)", code=UNIT, nice=COMPUTES),
    ),
    (
        Stage("c++", ctest("cxx", f"-E {REAL_TIME}"), "ctest", UNIT, 3, retry=True),
        Stage("smoke", go_tests(go_test("tests", "-timeout 20m -run '^TestSmoke$' ./cluster/...")), "go", SMOKE, 3, retry=True),
        Stage("walk", go_tests(go_test("tests", f"-timeout 20m -run '^({'|'.join(WALK_CORE)})$' ./walk/...")), "go", WALK, 4, retry=True),
        Stage("faults", go_tests(go_test("tests", "-timeout 20m -skip '^TestFaultsOf' ./faults/...")), "go", WALK, 1, retry=True),
        Stage("figures", "tests/bench.py counts --ci", code=FIGURES, minutes=2, nice=COMPUTES),
        Stage("model", go_tests(go_test("tests", f"-timeout 20m -run '{MODEL_CORE}' ./model/...")), "go", FIGURES, 2, COMPUTES),
    ),
)

# Programs that run again under each sanitizer. Debian's gRPC and protobuf are not instrumented, so TSan gets the
# programs with their own threads. NOT_BUILT is ctest's name for a program that this tree does not build.
ASAN = ("base_test net_grpc_test layout_test memory_test store_test dispatch_core_test dispatch_test transition_test kv_test kernels_test "
        "gpu_check_test device_test loader_test wire_processes_test client_test server_test gate_test mover_test net_test model_kernels_test "
        "engine_memory_test engine_pace_test engine_scheduler_test engine_mesh_test engine_rows_test engine_messages_test engine_world_test "
        "engine_latent_test engine_paced_test engine_abi_test engine_open_test attempt_test engine_turn_test engine_frontend_test engine_prefixes_test "
        "engine_ahead_test engine_cache_test transport_peer_test")
TSAN = ("store_test transition_test wire_processes_test engine_rows_test engine_mesh_test engine_world_test engine_paced_test dispatch_test "
        "server_test gate_test mover_test net_test base_test client_test engine_turn_test engine_frontend_test")
FUZZ = ("manifest_fuzz checkpoint_fuzz safetensors_fuzz resume_fuzz frame_fuzz config_fuzz data_port_fuzz engine_messages_fuzz mesh_fuzz dispatch_fuzz "
        "block_manifest_fuzz block_news_fuzz")
PARTIAL = f"-E 'NOT_BUILT|(client|dispatch)_abi_test|{REAL_TIME}'"
# A gRPC callback server passes messages between threads inside its library, which TSan reports as races; the code
# behind it has its own tests.
TSAN_PARTIAL = PARTIAL.replace("NOT_BUILT", "NOT_BUILT|FrontendServerTest")


def check(fuzz_seconds=20, faults="", faults_minutes=4):
    """The lanes of `check`, with the parameters that `nightly` extends: seconds per fuzz target, and the environment of
    the fault matrix."""
    race = "-race -timeout 30m"
    return (
        (
            Stage("race", go_tests(go_test("operator", f"{race} -skip '^TestSimulation$|{REAL_TIME}' ./internal/... ./cmd/...", "CGO_ENABLED=1"),
                                   go_test("e2e", f"{race} -skip {REAL_TIME} ./...", "CGO_ENABLED=1")), "go", CHECK, 12),
            Stage("asan", f"tests/sanitize.sh asan {ASAN} && {ctest('asan', PARTIAL)}", "ctest", CHECK, 12),
            Stage("tsan", f"tests/sanitize.sh tsan {TSAN} && TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp {ctest('tsan', TSAN_PARTIAL)}", "ctest", CHECK, 9),
            Stage("fuzz", f"tests/fuzz.sh {fuzz_seconds} {FUZZ}", code=CHECK, minutes=8 * fuzz_seconds / 20),
            Stage("model-rest", go_tests(go_test("tests", "-timeout 20m ./model/...")), "go", CHECK, 4),
        ),
        (
            Stage("cluster", go_tests(go_test("tests", "-timeout 30m -skip '^(TestSmoke|TestVllm)' ./cluster/...")), "go", CHECK, 8),
            Stage("clustertest", go_tests(go_test("e2e/cluster", "-timeout 20m ./clustertest/...")), "go", CHECK, 1),
            Stage("walk-rest", go_tests(go_test("tests", "-timeout 1h -skip '^TestVllm' ./walk/...")), "go", CHECK, 20),
            Stage("faults-rest", go_tests(go_test("tests", "-timeout 3h -skip '^TestFaultsOfVLLM' ./faults/...", faults)), "go", CHECK, faults_minutes),
            Stage("vllm-package", "make -s vllm-test", code=CHECK, minutes=2),
            Stage("vllm", go_tests(go_test("tests", "-p 1 -timeout 3h -run '^(TestVllm|TestFaultsOfVLLM)' ./walk/... ./faults/...", faults)), "go", CHECK, 6),
            Stage("vllm-cluster", "make -s vllm-image >&2 && " + go_tests(go_test("tests", "-timeout 30m -run '^TestVllm' ./cluster/...", "VLLM=1")), "go", CHECK, 5),
            Stage("demo", "build/bin/tangram-demo local --seed 1 --ranks 4 --out build/try/run", code=CHECK, minutes=1),
        ),
    )


# Tests of real time run alone on the machine: `check` and `nightly` run them before their lanes.
CLOCK = (
    Stage("clock", f"ctest --test-dir build/cxx -R {REAL_TIME} --output-on-failure --output-junit {{junit}}", "ctest", CHECK, 2, alone=True),
    Stage("go-clock", go_tests(*(go_test(module, f"-p 1 -timeout 20m -run {REAL_TIME} ./...") for module in ("api", "operator", "e2e"))), "go", CHECK, 2, alone=True),
)

FAULT_PARTS = 4  # of the full fault matrix, each about half an hour


def nightly():
    computes, worlds = check(fuzz_seconds=120, faults="FAULT_MATRIX=full SHARD=1/1", faults_minutes=30)
    parts = []
    for stage in worlds:
        if stage.name == "faults-rest":
            parts += [dataclasses.replace(stage, name=f"faults-{i}", command=stage.command.replace("SHARD=1/1", f"SHARD={i}/{FAULT_PARTS}"))
                      for i in range(1, FAULT_PARTS + 1)]
        else:
            parts.append(stage)
    last = (Stage("mutants", "make -s mutants", code=CHECK, minutes=90), Stage("bench", "tests/bench.py clocks", code=CHECK, minutes=60, alone=True))
    return ((*computes, Stage("simulation", "make -s simulate-agents SEED=$SEED COUNT=1000000", code=CHECK, minutes=20)), (*parts, *last))


# Folders whose changes need a stage of `check`; with ONLY=touched other stages are skipped.
TOUCHES = {
    "clock": "agent/ kernels/ e2e/engine/", "go-clock": "operator/ e2e/",
    "race": "operator/ e2e/", "asan": "agent/ kernels/ e2e/engine/ tests/gpu/",
    "tsan": "agent/ e2e/engine/", "fuzz": "agent/ e2e/engine/ operator/", "model-rest": "tests/model/ agent/gate/ agent/attempt/ operator/internal/driver/",
    "cluster": "api/ charts/ operator/ e2e/ tests/cluster/ proto/", "clustertest": "e2e/cluster/", "walk-rest": "agent/ e2e/ kernels/ operator/ proto/ tests/walk/ tests/internal/",
    "faults-rest": "agent/ e2e/engine/ operator/internal/ tests/faults/ tests/internal/", "vllm-package": "agent/vllm/ agent/engine/ agent/client/ proto/ e2e/setup/",
    "vllm": "agent/vllm/ agent/engine/ agent/client/ proto/ e2e/ operator/internal/gateway/ tests/internal/",
    "vllm-cluster": "agent/vllm/ proto/ operator/internal/ e2e/ tests/internal/ tests/cluster/", "demo": "e2e/ operator/ agent/ proto/",
}


def touched(lanes, changed):
    """Stages that changed files need.

    >>> [[s.name for s in lane] for lane in touched(check(), ["agent/vllm/x.py"])]
    [['asan', 'tsan', 'fuzz'], ['walk-rest', 'faults-rest', 'vllm-package', 'vllm', 'vllm-cluster', 'demo']]
    """
    return tuple(tuple(s for s in lane if any(path.startswith(tuple(TOUCHES[s.name].split())) for path in changed)) for lane in lanes)


def shard(lanes, i, n):
    """The i-th of n parts of all stages, of about equal length: each stage, longest first, goes to the shortest part.

    >>> parts = [shard(check(), i, 3) for i in (1, 2, 3)]
    >>> sorted(s.name for part in parts for lane in part for s in lane) == sorted(s.name for lane in check() for s in lane)
    True
    """
    parts = [[] for _ in range(n)]
    for stage in sorted((s for lane in lanes for s in lane), key=lambda s: -s.minutes):
        min(parts, key=lambda part: sum(s.minutes for s in part)).append(stage)
    return tuple(tuple(s for s in lane if s in parts[i - 1]) for lane in lanes)


def undeclared(root=ROOT):
    """Fuzz targets that no tier runs, and tests of WALK_CORE and MODEL_CORE that do not exist.

    >>> undeclared()
    set()
    """
    declared = set(re.findall(r"tangram_fuzz\((\w+)", "".join(path.read_text() for path in pathlib.Path(root).glob("[ae]*/**/CMakeLists.txt"))))
    exist = set(re.findall(r"^func (Test\w+)", "".join(path.read_text() for path in pathlib.Path(root).glob("tests/[wm]*/*_test.go")), re.M))
    return declared ^ set(FUZZ.split()) | (set(WALK_CORE) | set(re.findall(r"Test\w+", MODEL_CORE))) - exist
