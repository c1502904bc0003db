# Two commands matter: `make demo` and `make test`. Both do all set-up on a fresh
# Debian 12 machine (root, with Go 1.26, Python 3.11 and Node).
SHELL := /bin/bash
BUILD := build
SEED ?= 1
RANKS ?= 4
GO_MODULES := proto operator e2e tests

.PHONY: help demo test bench build setup cxx go model lint fmt proto clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: build model ## a world of ranks changes shape while it serves (SEED=, RANKS=)
	@$(BUILD)/bin/tangram-demo --seed $(SEED) --ranks $(RANKS) --out $(BUILD)/demo

test: ## everything that CI runs
	@python3 tests/stages.py

bench: ## make -s bench NAME=<name> [QUICK=1]; without NAME lists them
	@NAME=$(NAME) QUICK=$(QUICK) tests/bench.sh

build: setup cxx go

setup:
	@WITH_LINT=0 e2e/setup/install.sh

cxx: setup
	@test -f $(BUILD)/cxx/build.ninja || { echo "[build] configuring C++"; cmake -S . -B $(BUILD)/cxx -G Ninja >$(BUILD)/cmake.log || { cat $(BUILD)/cmake.log; exit 1; }; }
	@NINJA_STATUS='[build %es %p] ' ninja -C $(BUILD)/cxx tangram-agent tangram-engine

go: setup
	@mkdir -p $(BUILD)/bin
	@cd operator && go build -o ../$(BUILD)/bin/ ./cmd/...
	@cd e2e && go build -o ../$(BUILD)/bin/ ./demo/...

model: setup
	@test -f $(BUILD)/models/demo/config.json || { echo "[model] writing the demo checkpoint"; $(BUILD)/venv/bin/python e2e/model/make_checkpoint.py --preset demo --out $(BUILD)/models/demo; }

lint: ## clang-format, gofmt and golangci-lint
	@tests/lint.sh

fmt: ## formats C++ and Go
	@git ls-files '*.h' '*.cc' | xargs clang-format-14 -i
	@gofmt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')

proto: ## regenerates the Go twin of the wire contract (needs protoc-gen-go, protoc-gen-go-grpc)
	@cd proto && protoc -I . --go_out=. --go_opt=module=tangram.dev/proto \
	  --go-grpc_out=. --go-grpc_opt=module=tangram.dev/proto tangram/v1/*.proto

clean: ## removes the build folder
	@rm -rf $(BUILD)
