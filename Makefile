# make sweep      sweep a small grid on this machine: forward and backward, validated and timed
# make test       what CI runs on each version of Python and JAX: ruff, pyright, import-linter, pytest
# make test-all   the same with the exhaustive tests
# make test-fast  tests of the schema, packs, runtime, database, lookup and CLI, in under a minute
# make soak       kill, crowd and fuzz databases, sweeps and packs, and compile untuned choices, for SOAK_S seconds each
# make docs       regenerate the pages that are made from the code
# make table      regenerate the table of the kernels' parsed source
# make site       build the documentation as a web site in build/site

VENV := .venv
BIN := $(VENV)/bin
GRID ?= $(if $(GPU),gpu-smoke,cpu-smoke)
DB ?= sweep.db
# A first look, not the last word: a few configs of each kernel. `make sweep LIMITS=` tries them all.
LIMITS ?= $(if $(EXTRA),--max-trials 24 --budget 15m,--max-trials 3)
ARGS ?=
# A file stays on one worker: what its tests begin with is made once. (Groups of pytest-xdist 3.8 do nothing under pytest 9.2.)
# In the order that tests/conftest.py gives them, slow files first.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
SOAK_S ?= 600
FAST := tests/schema tests/packs tests/devices tests/runtime tests/db tests/cli/test_options.py tests/cli/test_commands.py

# The first interpreter on the path that is new enough; `make PYTHON=...` overrides it.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$p && break; done)
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
TPU := $(firstword $(wildcard /dev/accel0 /dev/vfio/0))
# Lowering Triton kernels needs jaxlib's CUDA plugin, a few megabytes, but none of the CUDA libraries that it names.
PLUGIN := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))
EXTRA := $(if $(GPU),cuda,$(if $(TPU),tpu))

# Some hundred processes of the tests would compile the same sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help sweep test test-all test-fast soak lint format docs table site clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: Python 3.12 or later is needed; see .python-version" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Stamps: installing is skipped until pyproject.toml changes.
$(VENV)/.installed-$(EXTRA): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".$(if $(EXTRA),[$(EXTRA)])"
	@touch $@

# Of twelve thousand modules the tests import a fifth, which then are compiled by two processes instead of one.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[dev]"
	$(if $(PLUGIN),$(BIN)/python -m pip install --quiet --no-deps \
		jax-cuda13-plugin==$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("jaxlib"))'))
	@touch $@

sweep: $(VENV)/.installed-$(EXTRA)
	$(BIN)/attn-tune sweep --grid $(GRID) --db $(DB) $(LIMITS) $(ARGS)
	@echo "These commands are in $(BIN): in this shell, first:  . $(BIN)/activate"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads 2 --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docstrings.py attn_tune benchmarks docs examples tests tools

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m ""

test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow and not exhaustive" $(FAST)

soak: $(VENV)/.installed-dev
	for script in kill_database kill_sweeps crowd fuzz_packs untuned_choices; do \
		$(BIN)/python -m tests.soak.$$script --seconds $(SOAK_S) || exit 1; done
	$(BIN)/python -m tests.soak.untuned_choices --tpu --seconds $(SOAK_S)
	$(BIN)/python -m tests.soak.untuned_choices --tpu --random --seconds $(SOAK_S)
	$(BIN)/python -m tests.soak.fault_battery
	$(BIN)/python -m tests.soak.ray_node_loss

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py

table: $(VENV)/.installed-dev
	$(BIN)/python tools/source_table.py

site: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .import_linter_cache
