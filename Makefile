# `make help` lists what there is. Everything installs what it needs: the system's packages by apt, the rest
# into .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
SCENARIO ?= stuck-rank
PYTEST_ARGS ?=
FAULTS ?=
SOAK_ARGS ?=

# What the programs need beside Python, and what the tests and benchmarks need on top: PROGRAM:PACKAGE.
RUN_PACKAGES := prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager
TEST_PACKAGES := chromium:chromium mpirun:openmpi-bin node:nodejs npm:npm redis-server:redis-server \
	pg_ctlcluster:postgresql systemd-analyze:systemd
BENCH_PACKAGES := mtail:mtail prometheus-node-exporter:prometheus-node-exporter \
	prometheus-process-exporter:prometheus-process-exporter

.PHONY: help demo run test lint fmt check bench soak outages clean test-nccl faults

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo .system-run ## watch a real hang being found; SCENARIO=… picks another
	@$(BIN)/python -m demo --scenario $(SCENARIO) $(DEMO_ARGS)

run: $(VENV)/.base .system-run ## exporter, snapshotter, Prometheus, Alertmanager for this machine's jobs
	@$(BIN)/python -m standalone

test: $(VENV)/.test .system-run .system-test ## run every test, end to end included
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS) $(filter-out tests/integration/ tests/e2e/ tests/faults/ tests/fixtures/ tests/golden/ tests/programs/,$(wildcard tests/*/))
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS) tests/integration
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/faults tests/e2e

lint: $(VENV)/.test ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.test ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test ## what CI runs

faults: $(VENV)/.test .system-test ## real torch jobs with one fault each, captured and judged; FAULTS=--list
	@$(BIN)/python -m tests.faults $(FAULTS)

test-nccl: $(VENV)/.test ## drive the NCCL client against NVIDIA's own RAS code, without a GPU (slow)
	$(BIN)/python tests/programs/nccl_lab.py --slow

bench-%: $(VENV)/.test .system-run .system-test .system-bench ## one benchmark, e.g. bench-merge
	$(BIN)/python benchmarks/bench_$*.py

bench: $(VENV)/.test .system-run .system-test .system-bench ## every benchmark beside a peer; the tables go to docs/benchmarks.md
	$(BIN)/python -m benchmarks --write

soak: $(VENV)/.test .system-run ## two hours of simulated jobs: no leak, no missed and no false alarm
	$(BIN)/python benchmarks/soak.py $(SOAK_ARGS)

outages: $(VENV)/.test .system-run .system-test ## take each part away during a hang; the table goes to docs/operations.md
	$(BIN)/python benchmarks/outages.py --write

clean: ## remove what make made
	rm -rf $(VENV) .demo .run

# --- installation -----------------------------------------------------------------------------------------

$(VENV)/.base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.demo: $(VENV)/.base
	$(BIN)/pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/pip install --quiet --group test --group lint
	@touch $@

# What is unreachable for a moment is tried again, and another that installs is waited for.
APT_GET := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300

# Debian starts a service as soon as it is installed; policy-rc.d is how it is told not to.
define install-packages
	@missing="$$(for one in $(1); do command -v "$${one%%:*}" >/dev/null || echo "$${one##*:}"; done)"; \
	if [ -n "$$missing" ]; then \
	  echo "installing" $$missing "(their services stay stopped)"; \
	  policy=/usr/sbin/policy-rc.d; kept=""; \
	  if [ -e $$policy ]; then kept=1; else \
	    printf '#!/bin/sh\nexit 101\n' | $(SUDO) tee $$policy >/dev/null; $(SUDO) chmod 755 $$policy; fi; \
	  $(APT_GET) update && $(APT_GET) install -y --no-install-recommends $$missing >/dev/null; \
	  status=$$?; [ -n "$$kept" ] || $(SUDO) rm -f $$policy; exit $$status; \
	fi
endef

.PHONY: .system-run .system-test .system-bench
.system-run:
	$(call install-packages,$(RUN_PACKAGES))

.system-test:
	$(call install-packages,$(TEST_PACKAGES))

.system-bench:
	$(call install-packages,$(BENCH_PACKAGES))
