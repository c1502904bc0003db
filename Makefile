# Two commands matter: `make demo` and `make test`. Both do all set-up on a fresh
# Debian 12 machine (root, with Go 1.26, Python 3.11 and Node).
SHELL := /bin/bash
BUILD := build
SEED ?= 1
RANKS ?= 4
# One kind of object files for all Go that is built, tested and linted (but for the race detector's): Kubernetes compiles once.
export CGO_ENABLED := 0
export GOFLAGS += -trimpath

.PHONY: help fault-matrix demo demo-vllm demo-up demo-down demo-local test bench build setup cluster-setup cxx go model wide-model lint fmt proto api clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: demo-build ## on a real cluster brought up here: helm install, kubectl apply, scale, switch, scale (SEED=, RANKS=)
	@$(BUILD)/bin/tangram-demo cluster --seed $(SEED) --ranks $(RANKS) --out $(BUILD)/demo

demo-vllm: demo-build vllm-image ## the same with vLLM's engines: two, then three; tokens compared with transformers (SEED=)
	@$(BUILD)/bin/tangram-demo vllm --seed $(SEED) --out $(BUILD)/demo-vllm

demo-up: demo-build ## the demo's cluster, left for you to type kubectl
	@$(BUILD)/bin/tangram-demo cluster-up --ranks $(RANKS)

demo-down: ## removes the demo's cluster, whatever state it is in
	@test ! -x $(BUILD)/bin/tangram-demo || $(BUILD)/bin/tangram-demo cluster-down

demo-local: build model ## the same story with plain processes, without Kubernetes (SEED=, RANKS=)
	@$(BUILD)/bin/tangram-demo local --seed $(SEED) --ranks $(RANKS) --out $(BUILD)/demo-local

fault-matrix: build model vllm-setup ## every fault point x kind of fault x transition, with real processes (SHARD=i/n, ONLY=regex); an hour and three quarters
	@set -o pipefail; cd tests && FAULT_MATRIX=full go test ./faults -count=1 -timeout 3h -v | grep --line-buffered -v '^=== '

.PHONY: demo-build
demo-build: build cluster-setup model

test: ## what CI runs: the same tests on every day; half an hour on two cores, half of it set-up and build
	@python3 tests/stages.py test

.PHONY: check nightly
check: ## before an issue is resolved: all other tests, sanitizers, fuzzers, fault cells of the commit's seed (SHARD=i/n, ONLY=touched, SEED=n)
	@python3 tests/stages.py check $(if $(SHARD),--shard $(SHARD)) $(if $(filter touched,$(ONLY)),--touched) $(if $(filter command line,$(origin SEED)),--seed $(SEED))

nightly: ## everything, with the whole fault matrix, mutants and benches; hours (SHARD=i/n)
	@python3 tests/stages.py nightly $(if $(SHARD),--shard $(SHARD))

.PHONY: simulate-agents
simulate-agents: setup ## seeded histories of a world of the agents' own code in one process (SEED=, COUNT=); a failure prints its seed and trace
	@test -f $(BUILD)/cxx/build.ninja || cmake -S . -B $(BUILD)/cxx -G Ninja >$(BUILD)/cmake.log || { cat $(BUILD)/cmake.log; exit 1; }
	@ninja -C $(BUILD)/cxx tangram-simulate-agents >/dev/null
	@$(BUILD)/cxx/agent/simulation/tangram-simulate-agents --seed '$(SEED)' --count '$(or $(COUNT),1000)'

.PHONY: mutants
mutants: ## small changes of the code that tests must notice (ONLY=package of Go, SAMPLE=n SEED=s); an hour or two without them
	@rc=0; (cd tests && go run ./mutants -only '$(ONLY)' -sample '$(or $(SAMPLE),0)' -seed '$(SEED)') || rc=1; \
	  test -n '$(ONLY)' || python3 tests/mutants/cxx.py $(if $(SAMPLE),--sample $(SAMPLE)) --seed '$(SEED)' || rc=1; \
  test -n '$(ONLY)' || python3 tests/mutants/simulation.py || rc=1; exit $$rc

bench: ## make -s bench NAME=<name> [QUICK=1] [DATE=YYYY-MM-DD]; NAME=all judges them all; without NAME lists them
	@QUICK=$(QUICK) DATE=$(DATE) python3 tests/bench.py $(NAME)

.PHONY: bench-setup
bench-setup: ## installs what `make bench NAME=transport` measures beside ours: iperf3, NIXL, Mooncake (in build/peers); else it says "not installed"
	@tests/peers/install.sh

.PHONY: vllm-setup
vllm-setup: ## vLLM for processors in build/vllm, for agent/vllm, tokenizers of real models and clients: 1 GB to download, 2 GiB on disk, two minutes
	@e2e/setup/vllm.sh && e2e/setup/tokenizers.sh && e2e/setup/clients.sh

.PHONY: vllm-image
vllm-image: build cluster-setup vllm-setup ## the image of vLLM's engines, as build/images/vllm.tar: half a GiB, a minute and a half
	@e2e/setup/vllm_image.sh

.PHONY: vllm-test
vllm-test: vllm-setup ## tests of agent/vllm, with real vLLM and a real agent (after make build); two minutes
	@agent/vllm/tests/run.sh

.PHONY: gpu-bundle gpu-check
gpu-bundle: setup ## build/gpu-check.tar.gz: gpu-check, packed for a bare machine with a GPU and its driver
	@test -f $(BUILD)/cxx/build.ninja || cmake -S . -B $(BUILD)/cxx -G Ninja >$(BUILD)/cmake.log || { cat $(BUILD)/cmake.log; exit 1; }
	@NINJA_STATUS='[build %es %p] ' ninja -C $(BUILD)/cxx tangram-gpu-check gpu_conformance_test
	@tests/gpu/bundle.sh $(BUILD)/cxx $(BUILD)/gpu-check.tar.gz

gpu-check: ## everything that wants a GPU, on this machine's; writes docs/gpu-results.md; at most eight minutes
	@tests/gpu/check.sh

build: setup cxx go

setup:
	@e2e/setup/install.sh

cxx: setup
	@test -f $(BUILD)/cxx/build.ninja || { echo "[build] configuring C++"; cmake -S . -B $(BUILD)/cxx -G Ninja >$(BUILD)/cmake.log || { cat $(BUILD)/cmake.log; exit 1; }; }
	@NINJA_STATUS='[build %es %p] ' ninja -C $(BUILD)/cxx tangram_kernels tangram-agent tangram-cold-start tangram-copy tangram-critical-path tangram-dispatch tangram-hook tangram-engine tangram-false-alarm tangram-kv-move tangram-kv-plan tangram-rank-cost tangram-remap tangram-stub-engines tangram-traffic tangram-transport tangram_client_wheel tangram_engine tangram_experts

# NCCL=/path/libnccl.so.2: of the GPUs' CUDA, e.g. of the wheel nvidia-nccl-cu13.
agent-gpu-image: cxx cluster-setup ## the image of agents on GPUs, with NCCL=FILE in it, as build/images/agent-gpu.tar
	@test -f "$(NCCL)" || { echo "make agent-gpu-image: NCCL=FILE names no libnccl.so.2"; exit 2; }
	@mkdir -p $(BUILD)/images
	@$(BUILD)/bin/tangram-cluster build-image --name tangram.dev/agent-gpu:dev --out $(BUILD)/images/agent-gpu.tar --user 65532 --entrypoint /bin/tangram-agent \
	  --env NVIDIA_VISIBLE_DEVICES=void --env NVIDIA_DRIVER_CAPABILITIES=compute,utility --env LD_LIBRARY_PATH=/usr/lib/tangram \
	  $(BUILD)/cxx/agent/server/tangram-agent $(BUILD)/cxx/agent/server/tangram-hook $(NCCL):/usr/lib/tangram/libnccl.so.2
	@echo "$(BUILD)/images/agent-gpu.tar"

cluster-setup: setup
	@WITH_CLUSTER=1 e2e/setup/install.sh

# Static, as the images of operator and gateway want them.
go: setup
	@mkdir -p $(BUILD)/bin
	@cd operator && GOGC=400 go build -o ../$(BUILD)/bin/ ./cmd/...
	@cd e2e && GOGC=400 go build -o ../$(BUILD)/bin/ ./demo/...

model: setup
	@test -f $(BUILD)/models/demo/config.json || { echo "[model] writing the demo checkpoint"; $(BUILD)/venv/bin/python e2e/model/make_checkpoint.py --preset demo --out $(BUILD)/models/demo; }

wide-model: setup
	@test -f $(BUILD)/models/wide/config.json || { echo "[model] writing a checkpoint of 1.1 GiB"; $(BUILD)/venv/bin/python e2e/model/make_checkpoint.py --preset wide --out $(BUILD)/models/wide; }

lint: setup ## clang-format, gofmt and golangci-lint
	@tests/lint.sh

fmt: ## formats C++ and Go
	@git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format-14 -i
	@gofmt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')

proto: ## regenerates the Go twin of the wire contract (needs protoc-gen-go, protoc-gen-go-grpc)
	@cd proto && protoc -I . --go_out=. --go_opt=module=tangram.dev/proto \
	  --go-grpc_out=. --go-grpc_opt=module=tangram.dev/proto tangram/v1/*.proto
	@cd proto && protoc -I . --include_imports --descriptor_set_out=../agent/vllm/tangram_front/front.binpb tangram/v1/front.proto

api: cluster-setup ## regenerates CRDs, deep copies, RBAC and the CRD reference from the Go types
	@api/generate.sh

clean: ## removes the build folder
	@rm -rf $(BUILD)
