# The main commands are `make try`, `make demo` and `make test`. Each does all set-up on a fresh Debian 12 machine (with
# Go 1.26, Python 3.11 and Node). Debian packages and the cluster need root.
SHELL := /bin/bash
BUILD := build
TRY := $(BUILD)/try
SEED ?= 1
RANKS ?= 4
# The same flags for all Go builds, tests and lints, except with the race detector. So Kubernetes is compiled only once.
export CGO_ENABLED := 0
export GOFLAGS += -trimpath

.PHONY: help try picture fault-matrix demo demo-vllm demo-up demo-down test bench build setup cluster-setup cxx go model wide-model lint fmt proto api clean

# A line "##@ NAME" begins a group of targets, and "## TEXT" after a target describes it.
help:
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "%s%s\n", sep, substr($$0, 5); sep = "\n" } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Try it

try: try-build ## Change the layout of a running model, with local processes and without Kubernetes (SEED=, RANKS=, STEP=)
	@TANGRAM_CXX=$(CURDIR)/$(TRY)/cxx TANGRAM_BIN=$(CURDIR)/$(TRY)/bin $(TRY)/bin/tangram-demo local --seed $(SEED) --ranks $(RANKS) $(if $(STEP),--min-step $(STEP)) --out $(TRY)/run

demo: demo-build ## Run the full demo on a Kubernetes cluster that this command starts and removes (SEED=, RANKS=, STEP=)
	@$(BUILD)/bin/tangram-demo cluster --seed $(SEED) --ranks $(RANKS) $(if $(STEP),--min-step $(STEP)) --out $(BUILD)/demo

demo-vllm: demo-build vllm-image ## Run the demo with vLLM engines, and compare all tokens with transformers (SEED=)
	@$(BUILD)/bin/tangram-demo vllm --seed $(SEED) --out $(BUILD)/demo-vllm

demo-up: demo-build ## Start the demo's cluster and keep it, for your own kubectl commands
	@$(BUILD)/bin/tangram-demo cluster-up --ranks $(RANKS)

demo-down: ## Remove the demo's cluster, in any state
	@test ! -x $(BUILD)/bin/tangram-demo || $(BUILD)/bin/tangram-demo cluster-down

.PHONY: demo-build try-build
demo-build: cluster-setup cxx-configure go model # of C++ only the programs of its images
	@NINJA_STATUS='[build %es %p] ' ninja -C $(BUILD)/cxx tangram-agent tangram-hook tangram-engine

# Builds only the programs that `make try` runs, in a separate folder.
try-build:
	@ONLY_TRY=1 e2e/setup/install.sh
	@test -f $(TRY)/cxx/build.ninja || { echo "[build] configuring C++"; mkdir -p $(TRY); cmake -S . -B $(TRY)/cxx -G Ninja -DTANGRAM_CUDA=OFF >$(TRY)/cmake.log || { cat $(TRY)/cmake.log; exit 1; }; }
	@NINJA_STATUS='[build %es %p] ' ninja -C $(TRY)/cxx tangram-agent tangram-engine
	@mkdir -p $(TRY)/bin
	@$(call go-build,$(TRY)/bin,./cmd/tangram-driver ./cmd/tangram-gateway,./demo/tangram-demo)
	@$(call checkpoint,deep,the demo checkpoint)

##@ Build and test

test: ## Run the tests that CI runs; takes half an hour on two cores, half of it for set-up and build
	@python3 tests/stages.py test

.PHONY: check nightly
check: ## Run all other tests, sanitizers, fuzzers and a sample of faults (SHARD=i/n, ONLY=touched, SEED=n)
	@python3 tests/stages.py check $(if $(SHARD),--shard $(SHARD)) $(if $(filter touched,$(ONLY)),--touched) $(if $(filter command line,$(origin SEED)),--seed $(SEED))

nightly: ## Run everything, including the whole fault matrix, mutants and benchmarks; takes hours (SHARD=i/n)
	@python3 tests/stages.py nightly $(if $(SHARD),--shard $(SHARD))

fault-matrix: build model vllm-setup ## Inject every fault at every point of every transition; takes two hours (SHARD=i/n, ONLY=regex)
	@set -o pipefail; cd tests && FAULT_MATRIX=full go test ./faults -count=1 -timeout 3h -v | grep --line-buffered -v '^=== '

.PHONY: simulate-agents
simulate-agents: cxx-configure ## Simulate agents in one process with random histories; a failure prints its seed and trace (SEED=, COUNT=)
	@ninja -C $(BUILD)/cxx tangram-simulate-agents >/dev/null
	@$(BUILD)/cxx/agent/simulation/tangram-simulate-agents --seed '$(SEED)' --count '$(or $(COUNT),1000)'

.PHONY: mutants
mutants: ## Check that tests detect small changes of the code; takes one to two hours (ONLY=Go package, SAMPLE=n, SEED=n)
	@rc=0; (cd tests && go run ./mutants -only '$(ONLY)' -sample '$(or $(SAMPLE),0)' -seed '$(SEED)') || rc=1; \
	  test -n '$(ONLY)' || python3 tests/mutants/cxx.py $(if $(SAMPLE),--sample $(SAMPLE)) --seed '$(SEED)' || rc=1; \
  test -n '$(ONLY)' || python3 tests/mutants/simulation.py || rc=1; exit $$rc

.PHONY: vllm-setup
vllm-setup: ## Install vLLM for CPUs, tokenizers and clients in build/; downloads 1 GB, takes two minutes
	@e2e/setup/vllm.sh && e2e/setup/tokenizers.sh && e2e/setup/clients.sh

.PHONY: vllm-image
vllm-image: build cluster-setup vllm-setup ## Build the image of the vLLM engines, build/images/vllm.tar
	@e2e/setup/vllm_image.sh

.PHONY: vllm-test
vllm-test: vllm-setup ## Test agent/vllm with real vLLM and a real agent (after make build)
	@agent/vllm/tests/run.sh

.PHONY: gpu-bundle gpu-check
gpu-bundle: cxx-configure ## Pack gpu-check for a machine that has only a GPU and its driver (build/gpu-check.tar.gz)
	@NINJA_STATUS='[build %es %p] ' ninja -C $(BUILD)/cxx tangram-gpu-check gpu_conformance_test
	@tests/gpu/bundle.sh $(BUILD)/cxx $(BUILD)/gpu-check.tar.gz

gpu-check: ## Run all checks that need a GPU on this machine, and write docs/gpu-results.md
	@tests/gpu/check.sh

build: setup cxx go ## Build all programs in build/

setup: ## Install everything that building and testing need
	@e2e/setup/install.sh

.PHONY: cxx-configure
cxx-configure: setup
	@test -f $(BUILD)/cxx/build.ninja || { echo "[build] configuring C++"; cmake -S . -B $(BUILD)/cxx -G Ninja >$(BUILD)/cmake.log || { cat $(BUILD)/cmake.log; exit 1; }; }

cxx: cxx-configure
	@NINJA_STATUS='[build %es %p] ' ninja -C $(BUILD)/cxx tangram_kernels tangram-agent tangram-cold-start tangram-copy tangram-critical-path tangram-dispatch tangram-hook tangram-engine tangram-false-alarm tangram-kv-move tangram-kv-plan tangram-rank-cost tangram-remap tangram-stub-engines tangram-traffic tangram-transport tangram_client_wheel tangram_engine tangram_experts

# NCCL=/path/libnccl.so.2: a library for the CUDA version of the GPUs, e.g. from the wheel nvidia-nccl-cu13.
agent-gpu-image: cxx cluster-setup ## Build the agent image for GPUs, build/images/agent-gpu.tar (NCCL=FILE)
	@test -f "$(NCCL)" || { echo "make agent-gpu-image: NCCL=FILE names no libnccl.so.2"; exit 2; }
	@mkdir -p $(BUILD)/images
	@$(BUILD)/bin/tangram-cluster build-image --name tangram.dev/agent-gpu:dev --out $(BUILD)/images/agent-gpu.tar --user 65532 --entrypoint /bin/tangram-agent \
	  --env NVIDIA_VISIBLE_DEVICES=void --env NVIDIA_DRIVER_CAPABILITIES=compute,utility --env LD_LIBRARY_PATH=/usr/lib/tangram \
	  $(BUILD)/cxx/agent/server/tangram-agent $(BUILD)/cxx/agent/server/tangram-hook $(NCCL):/usr/lib/tangram/libnccl.so.2
	@echo "$(BUILD)/images/agent-gpu.tar"

cluster-setup: setup ## Build Kubernetes and its tools, for the local cluster
	@WITH_CLUSTER=1 e2e/setup/install.sh

# Builds programs of operator/ and e2e/ into a folder. Prints a line for a first build, and for a long one.
go-build = test -x $(1)/tangram-demo || echo "[build] Go programs (the first build also compiles Kubernetes client libraries)" >&2; \
  (cd operator && GOGC=400 go build -o ../$(1)/ $(2)) && (cd e2e && GOGC=400 go build -o ../$(1)/ $(3)) || exit 1; \
  test $$SECONDS -lt 10 || echo "[build $${SECONDS}s] Go programs: done" >&2

# Static programs, because the images of operator and gateway have no libraries.
go: setup
	@mkdir -p $(BUILD)/bin
	@$(call go-build,$(BUILD)/bin,./cmd/...,./demo/...)

checkpoint = test -f $(BUILD)/models/$(1)/config.json || { echo "[model] writing $(2)"; $(BUILD)/venv/bin/python e2e/model/make_checkpoint.py --preset $(1) --out $(BUILD)/models/$(1) >/dev/null; }

model: setup
	@$(call checkpoint,deep,the demo checkpoint)
	@$(call checkpoint,demo,a checkpoint of 6 layers for tests)

wide-model: setup
	@$(call checkpoint,wide,a checkpoint of 1.1 GiB)

lint: setup ## Check formatting and run static checks
	@tests/lint.sh

fmt: ## Format C++ and Go
	@git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format-14 -i
	@gofmt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')

##@ Benchmarks

bench: ## Run one benchmark or all, or list them (make -s bench NAME=name|all QUICK=1 DATE=YYYY-MM-DD)
	@QUICK=$(QUICK) DATE=$(DATE) python3 tests/bench.py $(NAME)

.PHONY: bench-setup
bench-setup: ## Install iperf3, NIXL and Mooncake, for comparison in the benchmark "transport"
	@tests/peers/install.sh

##@ Generate

picture: ## Draw docs/transitions.svg from the report of the last make try
	@test -f $(TRY)/run/report.json || { echo "make picture: $(TRY)/run/report.json does not exist: run make try first" >&2; exit 1; }
	@cd e2e && go build -o ../$(TRY)/bin/ ./demo/tangram-demo
	@$(TRY)/bin/tangram-demo picture --report $(TRY)/run/report.json --svg docs/transitions.svg

proto: ## Regenerate the Go code of the protobuf files (needs protoc-gen-go and protoc-gen-go-grpc)
	@cd proto && protoc -I . --go_out=. --go_opt=module=tangram.dev/proto \
	  --go-grpc_out=. --go-grpc_opt=module=tangram.dev/proto tangram/v1/*.proto
	@cd proto && protoc -I . --include_imports --descriptor_set_out=../agent/vllm/tangram_front/front.binpb tangram/v1/front.proto

api: cluster-setup ## Regenerate CRDs, deep copies, RBAC and the CRD reference from the Go types
	@api/generate.sh

##@ Clean up

clean: ## Remove the build folder
	@rm -rf $(BUILD)
