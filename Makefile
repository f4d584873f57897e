# One menu of verbs; each makes the environment that it needs. `make help` lists them.
# OMP_WAIT_POLICY: tests run servers and trainers on the same cores; threads that spin there cost several times
# what they save, and decide no bit. Tests are shared out in the order of their folders: the files that take
# minutes stand in the first; by their number of tests, as pytest-xdist orders them, some would begin last.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP_FLAGS := --disable-pip-version-check --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo up down test lint types chaos bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/installed ## watch a training run survive being killed (under 5 minutes after installation)
	@$(BIN)/python -m flows.demo

up: .venv/installed ## start the stack on this machine: S3, Prefect, Metrics, a worker and rescue
	@$(BIN)/slugline up

down: .venv/installed ## stop the stack; runs in flight save first
	@$(BIN)/slugline down

test: lint types ## lint, types, import contracts and every test but the long campaigns
	OMP_WAIT_POLICY=passive $(BIN)/pytest -q -m "not chaos" --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: .venv/installed ## ruff, and the contracts on who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/installed ## mypy, strict, over code and tests
	$(BIN)/mypy

chaos: .venv/installed ## the long campaigns of kills and faults
	OMP_WAIT_POLICY=passive $(BIN)/pytest -q -m chaos tests/chaos

bench: .bench-venv/installed .bench-venv/peers/installed ## every benchmark against its peers, in an environment of its own
	@for script in $$(grep -l '^if __name__' benchmarks/*.py); do echo "== $$script"; .bench-venv/bin/python "$$script" || exit 1; done

clean: ## remove what make made here (the stack's data directory stays)
	rm -rf .venv .bench-venv

# Installed again only when what is asked for has changed.
.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv (once; a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.x ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[dev]'
	@touch $@

.bench-venv/installed: pyproject.toml constraints.txt
	@echo "installing into .bench-venv (once; a few minutes)"
	@test -x .bench-venv/bin/python || $(PYTHON) -m venv .bench-venv
	@.bench-venv/bin/python -m pip install $(PIP_FLAGS) --editable '.[dev]' 's3torchconnector[dcp]'
	@touch $@

# The trackers that the Metrics server is compared with; what they need clashes with what we need.
.bench-venv/peers/installed: benchmarks/peers.txt | .bench-venv/installed
	@test -x .bench-venv/peers/bin/python || $(PYTHON) -m venv .bench-venv/peers
	@.bench-venv/peers/bin/python -m pip install --disable-pip-version-check --quiet --requirement benchmarks/peers.txt
	@touch $@
