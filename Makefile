# `make help` lists the targets. `make check` runs the same checks as CI.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 10s
SEEDS ?= 5
MINUTES ?= 1
AGENT ?= nop
AGENTS ?= all
MODES ?=
N ?= 8
J ?= 1

.PHONY: help build console quick shape check test race e2e python adapters judges engines matrix tasks compare chaos bench lint fuzz

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## one static binary, bin/turngate
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/turngate ./cmd/turngate

console: ## type-check and build the pages of the console anew; needs Node 20 and npm
	cd internal/console/web && npm ci --silent && npm run --silent build

quick: ## the first answer, without Docker: build, lint, unit tests
	.ci/run build lint unit

shape: ## print the widest types, exported names, writers of results and calls between files
	go run ./internal/measure

check: ## run all checks of CI
	.ci/run

test: ## run the tests; the ones for Docker and agents are skipped where these are missing, and the ones of minutes everywhere
	go test ./...

race: ## the tests under the race detector, without the slow scenarios
	go test -race -timeout 20m $$(go list ./... | grep -v -e /e2e -e /sandboxes/docker)

e2e: ## run the tests with Docker and real agents; a missing part is a failure
	TURNGATE_REQUIRE=docker,agents go test -count=1 -v -timeout 60m ./e2e ./sandboxes/docker

engines: ## install vLLM for CPUs in the cache folder (6 GB) and test with it, also through five agents
	e2e/engines/install.sh
	TURNGATE_REQUIRE=vllm,agents go test -count=1 -v -timeout 60m -run 'TestARealEngine' ./e2e

python: ## test the Python client, its types, its style and its page of the docs in new virtual environments; needs PyPI
	TURNGATE_REQUIRE=python go test -count=1 -v -timeout 30m -run "TestPythonClient|TestTrainersPage" ./e2e

adapters: ## install TRL with torch in the cache folder (6 GB) and test the adapters of the Python client with all frameworks
	pythons=$$(e2e/adapters/install.sh) && TURNGATE_REQUIRE=python,adapters TURNGATE_PYTHONS="$$pythons" go test -count=1 -v -timeout 60m -run TestPythonAdapters ./e2e

judges: ## test the gate with the official client libraries; needs npm, and Node 20 or an installed agent that contains it
	cd e2e/judges && npm install --silent --no-audit --no-fund && go test -count=1 .

matrix: ## all ways in which engines answer (MODES) with all agents (AGENTS), whole and streamed, and a table
	TURNGATE_REQUIRE="$${TURNGATE_REQUIRE:-agents}" TURNGATE_MATRIX_AGENTS="$(AGENTS)" TURNGATE_MATRIX_MODES="$(MODES)" go test -count=1 -v -timeout 60m ./e2e/matrix

tasks: ## run every task of the folder TASKS in Docker with the agent nop; SAMPLE=N takes N at random, by SEED
	TURNGATE_REQUIRE=docker TURNGATE_TASKS="$(abspath $(TASKS))" TURNGATE_TASKS_SAMPLE=$(SAMPLE) TURNGATE_TASKS_SEED=$(SEED) go test -count=1 -timeout 12h -v -run TestPublicTasks ./e2e

compare: build ## Harbor and turngate on the same tasks of TASKS (AGENT, N of them, J at once); Harbor is beside TURNGATE_HARBOR_PYTHON
	go run ./e2e/compare -tasks "$(TASKS)" -agent "$(AGENT)" -n $(N) -j $(J)

chaos: ## faults at random for MINUTES on each of SEEDS seeds, a crash at every point, mutants, outages, a cluster
	CHAOS_FULL=1 CHAOS_SEEDS=$(SEEDS) CHAOS_SECONDS=$$(echo "$(MINUTES) * 60" | awk '{print int($$1*$$3)}') go test -count=1 -parallel 4 -timeout 12h -v ./e2e/chaos

bench: ## benchmarks beside the limit measured in the same run; feed two outputs to benchstat
	go test -run '^$$' -bench . -benchmem -count 3 ./internal/gate ./internal/gate/history ./internal/rollout/record ./schema ./internal/broker/... ./trajectory
	pythons=$$(e2e/adapters/install.sh openenv) && TURNGATE_PYTHONS="$$pythons" go test -run '^$$' -bench PythonTrainer -benchtime 3x ./e2e && PYTHONPATH=clients/python/src "$$pythons" clients/python/benchmarks/rows.py

lint: ## golangci-lint, at the version CI uses, whether its import rules hold, and whether the modules are tidy
	go mod tidy -diff
	cd e2e/judges && go mod tidy -diff
	go run $(LINT) run ./...
	.ci/import-rules go run $(LINT)

fuzz: ## every fuzz target of the tests for a while each (FUZZTIME)
	@for target in $$(grep -rHoE '^func Fuzz[A-Za-z]+' --include='*_test.go' --exclude-dir=testdata . | sed -E 's#^\./(.*)/[^/]+:func (.*)#\1:\2#' | sort); do \
		go test ./$${target%%:*} -run '^$$' -fuzz "^$${target##*:}\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x || exit 1; done
