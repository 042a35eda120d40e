# `make help` lists the targets. `make check` runs the same checks as CI.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
RUFF_VERSION := 0.17.6
RUFF := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/turngate/ruff-$(RUFF_VERSION)
FUZZTIME ?= 10s
TEST ?= go test
SEEDS ?= 5
MINUTES ?= 1
AGENT ?= nop
AGENTS ?= all
MODES ?=
N ?= 8
J ?= 1
GVISOR ?= v0.0.0-20260905035102-160fafc42237

.PHONY: help build console quick full shape test race e2e python adapters judges judges-tools engines gvisor helm kubernetes otelcol matrix tasks compare chaos scale day bench lint lint-python lint-tools fuzz check

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

check: ## run what must pass before a change lands, in fifteen minutes
	.ci/run

full: ## run the long tests, in an hour
	.ci/full

test: ## run the tests, in less than five minutes; those for Docker and agents are skipped where these are missing, and those that take long everywhere
	go test ./...

race: ## the tests under the race detector, without the slow scenarios
	bash -c '. .ci/env.sh && race_test -timeout 20m $$(go list ./... | grep -v -e /e2e -e /backends/docker)'

e2e: ## run the tests with Docker and real agents; a missing part is a failure
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=docker,agents go test -count=1 -v -timeout 60m ./e2e ./internal/backends/docker

engines: ## install vLLM for CPUs in the cache folder (6 GB) and test with it, also through five agents
	e2e/engines/install.sh
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=vllm,agents go test -count=1 -v -timeout 60m -run 'TestARealEngine' ./e2e

gvisor: ## build gVisor in the cache folder and test the docker sandbox with it; needs Docker, root, and the network
	GOBIN="$${XDG_CACHE_HOME:-$$HOME/.cache}/turngate/gvisor" CGO_ENABLED=0 GOFLAGS= go install gvisor.dev/gvisor/runsc@$(GVISOR)
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=docker,gvisor go test -count=1 -v -timeout 30m -run TestGVisor ./internal/backends/docker
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=docker,gvisor,agents go test -count=1 -v -timeout 30m -run TestRolloutsInGVisor ./e2e

helm: ## test the chart for Helm; needs no cluster and no helm
	cd deploy/helm && $(TEST) -vet=all -count=1 .

kubernetes: ## build kube-apiserver in the cache folder, and test the kubernetes sandbox and the chart for Helm with it; needs Docker and etcd
	internal/testenv/kubetest/install.sh
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=docker,kubernetes,agents go test -count=1 -v -timeout 60m ./internal/backends/kubernetes
	cd deploy/helm && TURNGATE_SLOW=1 TURNGATE_REQUIRE=docker,kubernetes go test -count=1 -v -timeout 30m -run 'TestTheAPIServer|TestTheRelease' .
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=docker,kubernetes,agents go test -count=1 -v -timeout 60m -run 'TestRealAgents/kubernetes' ./e2e

otelcol: ## build the collector of OpenTelemetry in the cache folder and test the export of traces and metrics with it
	internal/testenv/collector/install.sh
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=otelcol go test -count=1 -v -run TestTheSpansOfARollout ./internal/worker

python: ## test the Python client, its types and its page of the docs in new virtual environments; needs PyPI
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=python go test -count=1 -v -timeout 30m -run "TestPythonClient|TestTrainersPage" ./e2e

adapters: ## install TRL with torch in the cache folder (6 GB) and test the adapters of the Python client with all frameworks
	pythons=$$(e2e/adapters/install.sh) && TURNGATE_SLOW=1 TURNGATE_REQUIRE=python,adapters TURNGATE_PYTHONS="$$pythons" go test -count=1 -v -timeout 60m -run TestPythonAdapters ./e2e

judges: judges-tools ## test the gate, and the servers of the tests, with official client libraries, and `turngate serve` with its description; needs npm, Python, and Node 20 or an installed agent that contains it
	cd e2e/judges && $(TEST) -vet=all -count=1 .
	TURNGATE_SLOW=1 TURNGATE_REQUIRE=schemathesis $(TEST) -count=1 -run=TestSchemathesis ./internal/front

judges-tools: ## install the client libraries and schemathesis for the judges
	cd e2e/judges && npm ci --silent --no-audit --no-fund
	cd e2e/judges && { test -x .venv/bin/pip || $${TURNGATE_HARBOR_PYTHON:-python3} -m venv .venv; } && .venv/bin/pip install -q --disable-pip-version-check modal==1.6.4 schemathesis==4.32.5

matrix: ## all ways in which engines answer (MODES) with all agents (AGENTS), whole and streamed, and a table
	TURNGATE_REQUIRE="$${TURNGATE_REQUIRE:-agents}" TURNGATE_MATRIX_AGENTS="$(AGENTS)" TURNGATE_MATRIX_MODES="$(MODES)" TURNGATE_SLOW=1 $(TEST) -count=1 -v -timeout=60m ./e2e/matrix

tasks: ## run every task of the folder TASKS in Docker with the agent nop; SAMPLE=N takes N at random, by SEED
	TURNGATE_REQUIRE=docker TURNGATE_TASKS="$(abspath $(TASKS))" TURNGATE_TASKS_SAMPLE=$(SAMPLE) TURNGATE_TASKS_SEED=$(SEED) $(TEST) -count=1 -timeout=12h -v -run=TestPublicTasks ./e2e

compare: build ## Harbor and turngate on the same tasks of TASKS (AGENT, N of them, J at once); Harbor is beside TURNGATE_HARBOR_PYTHON
	go run ./e2e/compare -tasks "$(TASKS)" -agent "$(AGENT)" -n $(N) -j $(J)

chaos: ## faults at random for MINUTES on each of SEEDS seeds, a crash at every point, mutants, outages, a cluster
	TURNGATE_SLOW=1 CHAOS_SEEDS=$(SEEDS) CHAOS_SECONDS=$$(echo "$(MINUTES) * 60" | awk '{print int($$1*$$3)}') go test -count=1 -parallel 4 -timeout 12h -v ./e2e/chaos

scale: build ## what one server and three carry: rollouts that wait, connections, streams, messages and calls a second; for docs/scale.md
	go run ./e2e/scale idle -rollouts 1000
	go run ./e2e/scale idle -rollouts 3000
	go run ./e2e/scale servers
	go run ./e2e/scale servers -servers 3
	go run ./e2e/scale rates
	go run ./e2e/scale rates -servers 3

day: build ## a day of up to 1,000 workers in eight minutes, with bursts and losses: numbers in day.csv, a plot in day.svg
	go run ./e2e/scale day

bench: ## benchmarks beside the limit measured in the same run; feed two outputs to benchstat
	go test -run '^$$' -bench . -benchmem -count 3 ./internal/gate ./internal/gate/history ./internal/rollout/record ./schema ./internal/broker/... ./trajectory
	pythons=$$(e2e/adapters/install.sh openenv) && TURNGATE_PYTHONS="$$pythons" go test -run '^$$' -bench PythonTrainer -benchtime 3x ./e2e && PYTHONPATH=clients/python/src "$$pythons" clients/python/benchmarks/rows.py

lint-tools: ## install the linters, at the versions CI uses
	go run $(LINT) version
	$(RUFF)/bin/ruff --version || { python3 -m venv "$(RUFF)" && "$(RUFF)/bin/pip" install -q --disable-pip-version-check ruff==$(RUFF_VERSION); }

lint: ## golangci-lint, at the version CI uses, whether its import rules hold, and whether the modules are tidy
	go mod tidy -diff
	cd e2e/judges && go mod tidy -diff
	cd deploy/helm && go mod tidy -diff
	go run $(LINT) run ./...
	.ci/import-rules go run $(LINT)

lint-python: ## the linter and the format of all Python, after lint-tools
	cd clients/python && paths='. ../../examples ../../e2e/chaos ../../e2e/testdata/grpo' && \
	"$(RUFF)/bin/ruff" check --no-cache --config pyproject.toml $$paths && "$(RUFF)/bin/ruff" format --no-cache --check --config pyproject.toml $$paths

fuzz: ## every fuzz target of the tests for a while each (FUZZTIME)
	@for target in $$(grep -rHoE '^func Fuzz[A-Za-z]+' --include='*_test.go' --exclude-dir=testdata . | sed -E 's#^\./(.*)/[^/]+:func (.*)#\1:\2#' | sort); do \
		go test ./$${target%%:*} -run '^$$' -fuzz "^$${target##*:}\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x || exit 1; done
