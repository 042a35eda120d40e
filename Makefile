# `make help` lists what there is. `make check` runs what CI runs.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 10s
SEEDS ?= 5
MINUTES ?= 1

.PHONY: help build check test race e2e judges chaos bench lint fuzz

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## one static binary, bin/turngate
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/turngate ./cmd/turngate

check: ## what CI runs
	.ci/run

test: ## unit tests and, where Docker and agents are there, everything else
	go test ./...

race: ## the tests under the race detector, without the slow scenarios
	go test -race $$(go list ./... | grep -v -e /e2e -e /sandboxes/docker)

e2e: ## the scenarios with Docker and real agents, which must be there
	TURNGATE_REQUIRE=docker,agents go test -count=1 -v ./e2e ./sandboxes/docker

judges: ## the official client libraries against the gate; needs npm, and Node 20 or an installed agent that brings one
	cd e2e/judges && npm install --silent --no-audit --no-fund && go test -count=1 .

chaos: ## faults at random for MINUTES on each of SEEDS seeds, a crash at every point, mutants, outages, a cluster
	CHAOS_FULL=1 CHAOS_SEEDS=$(SEEDS) CHAOS_SECONDS=$$(echo "$(MINUTES) * 60" | awk '{print int($$1*$$3)}') go test -count=1 -parallel 4 -timeout 12h -v ./e2e/chaos

bench: ## benchmarks beside the limit measured in the same run; feed two outputs to benchstat
	go test -run '^$$' -bench . -benchmem -count 3 ./worker/gate ./worker ./schema ./broker

lint: ## golangci-lint, at the version CI uses
	go run $(LINT) run ./...

fuzz: ## every fuzz target for a while each (FUZZTIME)
	@for target in schema:FuzzDecode schema:FuzzHashMessage schema:FuzzNormalForm schema:FuzzPlainValue schema:FuzzEach worker/gate:FuzzChatDecode worker/gate:FuzzChatEncode worker/gate:FuzzResponsesDecode worker/gate:FuzzResponsesEncode \
		worker/gate:FuzzMessagesDecode worker/gate:FuzzMessagesEncode worker/gate:FuzzGeminiDecode worker/gate:FuzzGeminiEncode tasks:FuzzOpen trainer/replay:FuzzParse upstream:FuzzReadStream sandboxes/box:FuzzFrames agents:FuzzParseEvent; do \
		go test ./$${target%%:*} -run '^$$' -fuzz "^$${target##*:}\$$" -fuzztime $(FUZZTIME) || exit 1; done
