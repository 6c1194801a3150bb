# Five words and two commands: install, check, format, test, build; demo and bench.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := proxy,loadgen,sim,otel,dev
# Nothing that a test starts may send anything out.
export RAY_USAGE_STATS_ENABLED := 0
export VLLM_NO_USAGE_STATS := 1
export DO_NOT_TRACK := 1
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
# The two rooms with heavier needs keep their own targets: test-ops, ops-demo; test-vllm, bench-vllm.
-include deploy/ops.mk tests/vllm/vllm.mk
.PHONY: help install check format test build demo bench bench-decision clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml constraints.txt core/breakeven/__init__.py
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v>=(3,11) else f"breakeven needs Python >= 3.11, this is {v[0]}.{v[1]}: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: on Debian install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

install: $(VENV)/.installed ## ./.venv with every command

check: install ## ruff (lint and format), mypy --strict, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: install ## ruff format and fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: install ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=15 -m 'not vllm and not ops'

build: install ## sdist and wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

demo: install ## the main job on the embedded simulated engine
	$(BIN)/loadgen demo

bench-decision: install ## 200 grids with known truth through the judge (half an hour)
	$(BIN)/python -m benchmarks decision

bench: install ## cost, added latency and fidelity beside peers (not a test)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .venv-ops .venv-vllm dist build .mypy_cache .ruff_cache .pytest_cache
