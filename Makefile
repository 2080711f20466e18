# `make run` sets everything up and diagnoses the embedded example; `make test` runs all tests; `make check` is what a change must pass.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# A smaller torch for machines without a GPU: make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
CASES ?= ../shared/cases

BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
PIP_TORCH := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: run setup test lint check format test-node test-frameworks cases strangers bench build lock clean

run: setup
	@# The example has bugs planted, so `verify` reports findings with exit code 1.
	$(BIN)/rltriage verify --example || test $$? -eq 1

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rltriage needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	$(BIN)/python -m pip install --quiet $(PIP_TORCH) '$(TORCH)'
	@touch $@

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m 'not frameworks'

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/sync_skills.py --check

check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m 'not node and not frameworks and not deep'

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/sync_skills.py

test-node: setup
	$(BIN)/python -m pytest -m node

# The real functions of released frameworks, in an environment of their own: they pin many packages.
# verl, OpenRLHF, torchtune and Liger come without their dependencies, of which the functions under test need only a few.
$(FRAMEWORKS)/ready: tests/frameworks/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(FRAMEWORKS)/bin/python -m pip install --quiet $(PIP_TORCH) '$(TORCH)'
	$(FRAMEWORKS)/bin/python -m pip install --quiet --requirement tests/frameworks/requirements.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --no-deps verl==0.9.1 openrlhf==0.11.2 torchtune==0.6.1 liger-kernel==0.8.5
	@touch $@

test-frameworks: setup $(FRAMEWORKS)/ready
	RLTRIAGE_FRAMEWORKS_PYTHON=$(CURDIR)/$(FRAMEWORKS)/bin/python $(BIN)/python -m pytest -m frameworks

cases: setup
	@if [ -f '$(CASES)/score.py' ]; then \
	    $(BIN)/python scripts/score_cases.py '$(CASES)' --rltriage '$(CURDIR)/$(BIN)/rltriage'; \
	else echo "no cases at $(CASES): nothing scored (set CASES=DIR)"; fi

# A field of wrong and right functions that no role was written for; make strangers COUNT=2000 SEED=7 for a long night.
COUNT ?= 200
SEED ?= 0
strangers: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/strangers/field.py --wrong $(COUNT) --right $(COUNT) --seed $(SEED)

bench: setup
	set -e; for b in tests/benchmarks/bench_*.py; do echo "== $$b"; $(BIN)/python $$b; done

build: setup
	$(BIN)/python -m build --no-isolation

lock:
	uv lock

clean:
	rm -rf dist build .pytest_cache .ruff_cache .import_linter_cache .hypothesis
