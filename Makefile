# The developer's manual. `make demo` and `make test` set up everything they need.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
OUT ?= demo-out
ARGS ?=
PART ?=
SHOTS ?=
# Tests that run at a time; what wants Spark keeps to one of the workers.
JOBS ?= 2
MESSAGES ?= 1000
SEQUENCES ?= 100000
SEED ?= 15
FUZZ_S ?= 60
STRANGERS_S ?= 60
SCENARIO ?=
BENCH ?=
SOAK_MESSAGES ?= 1000000
SOAK_CONNECTS ?= 10000
GO ?= $(shell command -v go 2>/dev/null || echo /usr/local/go/bin/go)
# Compiled modules lie under build: the checkout stays clean, and no node of a test compiles anew.
export PYTHONPYCACHEPREFIX = $(CURDIR)/build/pycache
# What a machine has set for Python must not leak into the environment.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

##@ Everyday
.PHONY: help
help:  ## show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup  ## run the main job on this machine: relays, an outage, a rogue peer, the archive
	$(BIN)/luxrelay demo --out $(OUT) $(ARGS)

.PHONY: test
test: setup lint types unit integration  ## everything that must hold before a commit

.PHONY: setup
setup: $(STAMPS)/packages $(STAMPS)/jars  ## make the environment (fast the second time)

##@ Parts of the test
.PHONY: lint
lint: $(STAMPS)/packages  ## style, spelling, the floors of the house, and what is installed
	$(BIN)/ruff check src tests bench tools examples
	$(BIN)/ruff format --check src tests bench tools examples
	$(BIN)/codespell src tests bench tools examples docs README.md CHANGELOG.md
	$(BIN)/lint-imports
	$(BIN)/python tools/check_dependencies.py

.PHONY: types
types: $(STAMPS)/packages  ## mypy, strict
	$(BIN)/mypy

.PHONY: unit
unit: $(STAMPS)/packages  ## unit, property and house tests: no network, no processes
	$(BIN)/pytest -n $(JOBS) tests/unit tests/property tests/house tests/fuzz

.PHONY: integration
integration: setup  ## real libp2p, RocksDB, gRPC, Spark, processes that are killed
	$(BIN)/pytest -n $(JOBS) --dist loadgroup tests/integration tests/adversary tests/chaos -m 'not long'

.PHONY: trials
trials: setup  ## inputs that once failed, and their siblings, each at a door of a running node
	$(BIN)/pytest -n $(JOBS) --dist loadgroup tests -m 'trial and not long'

.PHONY: first-hour
first-hour: $(STAMPS)/packages  ## the demonstration as its help says, from an installed wheel: without the archive beside two busy loops, then with it; it fetches packages
	$(BIN)/python tools/first_hour.py

##@ Longer runs
.PHONY: mutants
mutants: setup  ## take each defence out; the test that is named for it must fail
	$(BIN)/python tools/mutants.py --jobs $(JOBS) $(if $(GO_ON),--go-on)

.PHONY: bench
bench: setup $(STAMPS)/peers $(STAMPS)/interop-sds/peer.mjs $(if $(filter $(or $(PART),net),net),bench-peers)  ## benchmarks, ratios against a limit or a peer of the same run; PART=store for one
	$(BIN)/python bench/measure.py $(PART)

# The other makes of gossipsub: what cannot be built here is named in its rows and stops nothing.
.PHONY: bench-peers
bench-peers:
	-@$(MAKE) --no-print-directory $(STAMPS)/interop-js/peer.mjs
	-@$(MAKE) --no-print-directory $(STAMPS)/interop-go-peer

.PHONY: sim
sim: setup  ## simulate every scenario that ships at full size; some twenty minutes of one core
	LUXRELAY_SIM_NODES=1000 $(BIN)/pytest tests/integration/test_simulations.py -o faulthandler_timeout=0

.PHONY: chaos
chaos: setup  ## kill processes many times over
	LUXRELAY_CHAOS_ROUNDS=40 LUXRELAY_CHANNEL_KILLS=50 $(BIN)/pytest tests/chaos -m 'not long' -o faulthandler_timeout=0
	LUXRELAY_CHANNEL_MESSAGES=500 $(BIN)/pytest tests/property/test_channel.py -k weather
	LUXRELAY_FILE_BYTES=5242880 $(BIN)/pytest tests/integration/gateway/test_channel_file.py -o faulthandler_timeout=0

.PHONY: soak
soak: setup  ## memory over 1,000,000 messages and 10,000 connects, in the router and on real sockets; an hour of one core
	LUXRELAY_SOAK_MESSAGES=$(SOAK_MESSAGES) LUXRELAY_SOAK_PEERS=$(SOAK_CONNECTS) $(BIN)/pytest tests/unit/gossip/test_flatness.py -o faulthandler_timeout=0
	LUXRELAY_SOAK_NET_MESSAGES=$(SOAK_MESSAGES) LUXRELAY_SOAK_NET_CONNECTS=$(SOAK_CONNECTS) LUXRELAY_NET_DEADLINE_S=14400 \
	  $(BIN)/pytest tests/integration/net/test_net_soak.py -s -o faulthandler_timeout=0

.PHONY: cluster
cluster: setup  ## the archive's page, command by command, and its pipeline on a standalone Spark cluster and through Spark Connect: processes on the loopback, ten minutes
	$(BIN)/pytest tests/integration/archive/test_archive_cluster.py tests/integration/test_docs_commands.py::test_how_to_archive -o faulthandler_timeout=0

.PHONY: archive
archive: setup  ## the archive at length: 20,000 messages against an independent check, upkeep, finality, a cluster, Spark Connect, killed drivers and relays, the page's commands
	$(BIN)/pytest tests/integration/archive tests/chaos/test_kill_driver.py tests/integration/test_docs_commands.py -m long -o faulthandler_timeout=0

.PHONY: operations
operations: $(STAMPS)/promtool  ## check the alert rules of deploy/ with promtool, and test that each fires
	cd deploy/prometheus && promtool check rules alerts.yml && promtool test rules alerts_test.yml

.PHONY: interop
interop: $(STAMPS)/packages $(STAMPS)/interop-js/peer.mjs $(STAMPS)/interop-go-peer $(STAMPS)/interop-negentropy $(STAMPS)/interop-rpc/client.mjs $(STAMPS)/interop-sds/peer.mjs  ## one mesh with js-libp2p and go-libp2p-pubsub, one channel with @waku/sds, and a node of an earlier commit; MESSAGES=50 for a short run
	LUXRELAY_INTEROP_MESSAGES=$(MESSAGES) LUXRELAY_INTEROP_SDS_MESSAGES=$(if $(filter 1000,$(MESSAGES)),200,$(MESSAGES)) $(BIN)/pytest tests/interop

.PHONY: browser
browser: $(STAMPS)/packages $(STAMPS)/browser/node_modules/axe-core/axe.min.js  ## the dashboard in headless Chromium, with an accessibility checker; SHOTS=docs/how-to/images makes the pictures
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { echo "make browser needs Chromium (Debian: apt-get install chromium)"; exit 1; }
	LUXRELAY_SCREENSHOTS=$(SHOTS) $(BIN)/pytest tests/browser

.PHONY: api
api: $(STAMPS)/packages  ## schemathesis in every phase against both OpenAPI documents, and 10,000 hostile requests to each listener
	LUXRELAY_API_EXAMPLES=30 LUXRELAY_API_PHASES=examples,coverage,fuzzing LUXRELAY_HOSTILE_REQUESTS=10000 \
	  $(BIN)/pytest -o faulthandler_timeout=0 tests/integration/gateway/test_openapi.py tests/integration/gateway/test_gateway_bounds.py \
	  tests/integration/gateway/test_gateway_grpc.py tests/integration/test_node.py::test_garbage_on_every_port_leaves_it_alive

.PHONY: audit
audit: $(STAMPS)/packages $(STAMPS)/audit/bin/pip-audit  ## known weaknesses of the pinned packages; asks the advisory service of the package index
	$(BIN)/python tools/check_dependencies.py
	$(STAMPS)/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

.PHONY: adversary
adversary: $(STAMPS)/packages  ## 100,000 hostile sequences each at HTTP, WebSocket and gRPC, 100,000 frames of lying peers; twenty minutes of two cores; SEED=16 for others
	LUXRELAY_ADVERSARY_SEQUENCES=$(SEQUENCES) LUXRELAY_ADVERSARY_SEED=$(SEED) $(BIN)/pytest -s tests/adversary -o faulthandler_timeout=0

.PHONY: fuzz
fuzz: setup  ## fuzz every decoder for a minute each (FUZZ_S=600 for longer), then a million mutated headers
	for target in tests/fuzz/fuzz_*.py; do $(BIN)/python $$target -max_total_time=$(FUZZ_S) || exit 1; done
	$(BIN)/python tests/fuzz/million.py

.PHONY: long
long: setup  ## the tests that are marked long: minutes each, the archive's above all
	$(BIN)/pytest tests -m long -o faulthandler_timeout=0

.PHONY: strangers
strangers: $(STAMPS)/packages  ## what an address without a token costs a node, judged; STRANGERS_S=12 for shorter attacks
	$(BIN)/python bench/cost_of_strangers.py --judge --seconds $(STRANGERS_S)

.PHONY: netlab
netlab: $(STAMPS)/packages  ## real nodes in network namespaces over links that are slow, lossy and cut; needs root; SCENARIO="calm flap" for some; build/netlab/report.md
	$(BIN)/python bench/lab.py $(SCENARIO)

.PHONY: netlab-short
netlab-short: $(STAMPS)/packages  ## the same below five minutes: calm, a loss, a cut, catching up over a slow link
	$(BIN)/python bench/lab.py --short

.PHONY: demos
demos: setup  ## the demonstration as its help shows it, ten times, five of them beside two busy loops
	$(BIN)/python tools/demos.py

.PHONY: floors
floors: setup $(STAMPS)/peers $(STAMPS)/interop-sds/peer.mjs bench-peers  ## every benchmark; a ratio far below its aim is a failure
	$(BIN)/python bench/measure.py --floors $(BENCH)

.PHONY: nightly
nightly: setup  ## the longer runs one after another, and what held; PART="trials fuzz" for some, GO_ON=1 without those that held at this commit before; log files in build/nightly
	$(BIN)/python tools/nightly.py --make '$(MAKE)' $(if $(GO_ON),--go-on) $(PART)

##@ Made from code
.PHONY: vectors
vectors: $(STAMPS)/packages  ## write the conformance vectors anew
	$(BIN)/luxrelay vectors write

.PHONY: protos
protos: $(STAMPS)/packages  ## regenerate the protobuf modules
	$(BIN)/python tools/generate_protos.py

.PHONY: docs
docs: $(STAMPS)/packages  ## regenerate the reference pages that are made from code
	$(BIN)/python tools/generate_reference.py

.PHONY: site
site: $(STAMPS)/packages  ## build/site: the documentation as HTML; a link that leads nowhere is an error
	$(BIN)/python tools/build_site.py build/site

##@ Cleaning up
.PHONY: clean
clean:  ## remove what the targets above made
	rm -rf $(VENV) $(STAMPS) $(OUT) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse

# What the stamps stand for: an environment with the pinned packages, and Delta's jars inside it.
$(STAMPS)/packages: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "LuxRelay needs Python 3.11, 3.12 or 3.13; name it: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "The packages are downloaded now; they take about 1.7 GB in $(VENV). The first time this takes minutes."
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[archive,connect,dev]'; \
	else \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[archive,connect,dev]'; \
	fi
	@mkdir -p $(STAMPS) && touch $@

# Apart from the environment it looks at, so that it needs no pins of its own there.
$(STAMPS)/audit/bin/pip-audit:
	$(PYTHON) -m venv $(STAMPS)/audit
	$(STAMPS)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1

# The accessibility checker, for `make browser`.
$(STAMPS)/browser/node_modules/axe-core/axe.min.js:
	@command -v npm >/dev/null 2>&1 || { echo "make browser needs Node 20 or later with npm"; exit 1; }
	@mkdir -p $(STAMPS)/browser
	cd $(STAMPS)/browser && npm install --no-package-lock --no-save --ignore-scripts --loglevel=error --no-audit --no-fund axe-core@4.14.1

# The peers of other languages, for `make interop` and the gossip benchmark.
$(STAMPS)/interop-js/node_modules: tests/interop/js/package.json tests/interop/js/package-lock.json
	@command -v npm >/dev/null 2>&1 || { echo "make interop needs Node 20 or later with npm"; exit 1; }
	@mkdir -p $(STAMPS)/interop-js
	cp tests/interop/js/package*.json $(STAMPS)/interop-js && cd $(STAMPS)/interop-js && npm ci --loglevel=error --no-audit --no-fund
	@touch $@

$(STAMPS)/interop-js/peer.mjs: $(wildcard tests/interop/js/*.mjs) $(STAMPS)/interop-js/node_modules
	cp tests/interop/js/*.mjs $(STAMPS)/interop-js && touch $@

$(STAMPS)/interop-sds/node_modules: tests/interop/sds/package.json tests/interop/sds/package-lock.json
	@command -v npm >/dev/null 2>&1 || { echo "make interop needs Node 20 or later with npm"; exit 1; }
	@mkdir -p $(STAMPS)/interop-sds
	cp tests/interop/sds/package*.json $(STAMPS)/interop-sds && cd $(STAMPS)/interop-sds && npm ci --ignore-scripts --loglevel=error --no-audit --no-fund
	@touch $@

$(STAMPS)/interop-sds/peer.mjs: tests/interop/sds/peer.mjs $(STAMPS)/interop-sds/node_modules
	cp tests/interop/sds/peer.mjs $(STAMPS)/interop-sds && touch $@

$(STAMPS)/interop-go-peer: $(wildcard tests/interop/go/*)
	@command -v $(GO) >/dev/null 2>&1 || { echo "make interop needs Go; name it: make GO=/path/to/go interop"; exit 1; }
	@mkdir -p $(STAMPS)
	cd tests/interop/go && CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(CURDIR)/$@ .

$(STAMPS)/interop-negentropy: $(wildcard tests/interop/negentropy/go/*)
	@mkdir -p $(STAMPS)
	cd tests/interop/negentropy/go && CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(CURDIR)/$@ .

$(STAMPS)/interop-rpc/client.mjs: $(wildcard tests/interop/rpc/*)
	@mkdir -p $(STAMPS)/interop-rpc
	cp tests/interop/rpc/package*.json $(STAMPS)/interop-rpc && cd $(STAMPS)/interop-rpc && npm ci --loglevel=error --no-audit --no-fund
	cp tests/interop/rpc/client.mjs $@

$(STAMPS)/jars: $(STAMPS)/packages src/luxrelay/archive/jars.py
	$(BIN)/python -m luxrelay.archive.jars
	@mkdir -p $(STAMPS) && touch $@

# What the benchmarks measure us against: Redis by the distribution, NATS by the Go toolchain.
$(STAMPS)/peers: bench/install_peers.py
	$(PYTHON) bench/install_peers.py
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/promtool:
	@command -v promtool >/dev/null 2>&1 || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus; }
	@mkdir -p $(STAMPS) && touch $@
