# make run    starts the demo (everything it needs is set up in .venv first); ARGS="--seconds 20 --quiet" are passed on
# make test   runs the test suite; ARGS="-k admission" are passed on
# make check  lint, types (of the Python in docs/ and examples/plugins too), import contracts, the docs as a site, and whether the tables of docs/ are what the code says
# make docs   the tables and counts in README.md and docs/ that follow from the code, written anew
# make site   the documentation as a site, in build/site
# make compile  the wheel with compiled modules (MAITRED_COMPILE=1 pip install .), in build/compiled beside the sources in .venv;
#             needs a C compiler. PYTHONPATH=build/compiled .venv/bin/maitred --version says which one runs
# make test-compiled  the tests of these modules, compiled
# make vllm-test  the plug-in for vLLM inside a real vLLM: 2.5 GB in .venv-vllm the first time (MAITRED_VLLM_VENV=FOLDER: elsewhere)
# make bench  the benchmarks, the simulator's both ways
# make world  the gateway in a virtual world: 10,000,000 events of the swarm; ARGS="--seed 17 --trace" for one scenario (docs/world.md)
# make stress ten thousand clients against the gateway for a minute; ARGS="--clients 1000 --seconds 10" are passed on

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# tests/conftest.py says how many processes. The tests of a file stay together: they share a server, or a simulated run. The order of the
# files is that of tests/conftest.py.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

COMPILED := build/compiled
MYPYC_OPT_LEVEL ?= 3
# The level is part of the name: modules compiled at another one are compiled again before they are measured.
MADE := $(COMPILED)/.made-O$(MYPYC_OPT_LEVEL)
MAITRED_VLLM_VENV ?= .venv-vllm
VLLM_PYTHON := $(MAITRED_VLLM_VENV)/bin/python
VLLM_MODEL := $(abspath $(MAITRED_VLLM_VENV))/tiny-model

.PHONY: run test check check-and-test docs site format compile test-compiled vllm-test bench world world-in-short stress clean

run: $(VENV)/.installed
	@$(BIN)/maitred demo $(ARGS)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@rm -rf build/docs_python && $(BIN)/python tools/docs.py --python build/docs_python
	$(BIN)/mypy build/docs_python/*.py examples/plugins/*.py
	$(BIN)/lint-imports
	@$(BIN)/python tools/site.py
	$(BIN)/python tools/docs.py --check

docs: $(VENV)/.installed-dev
	@$(BIN)/python tools/docs.py

site: $(VENV)/.installed-docs
	@$(BIN)/python tools/site.py $(ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What .ci/run does beside the compile: one after the other, since the tests take both cores.
check-and-test: check
	@$(MAKE) --no-print-directory world-in-short test

compile: $(MADE)

test-compiled: $(VENV)/.installed-dev $(MADE)
	@PYTHONPATH=$(abspath $(COMPILED)) $(BIN)/python -m pytest $(PARALLEL) $(addprefix tests/,instance batching kv queueing routing conformance/test_blis_conformance.py \
		conformance/test_sglang_radix.py sim/test_vllm_conformance.py sim/test_pipeline.py sim/test_disaggregation.py \
		wire gateway/test_gateway_proxying.py gateway/test_gateway_plain_runs.py gateway/test_gateway_interruptions.py gateway/test_gateway_failures.py \
		gateway/test_gateway_preemption.py gateway/test_gateway_program_failures.py admission/test_admission_core.py \
		admission/test_admission_properties.py admission/test_every_mode.py admission/test_preemption.py \
		admission/test_adaptive_reserve.py) $(ARGS)
	@PYTHONPATH=$(abspath $(COMPILED)) $(BIN)/maitred --version | grep -F '(compiled)'

vllm-test:
	@$(PYTHON) tools/vllm/make_venv.py $(MAITRED_VLLM_VENV)
	@$(VLLM_PYTHON) tools/vllm/make_tiny_model.py $(VLLM_MODEL)
	@PYTHONPATH=$(CURDIR)/src MAITRED_VLLM_MODEL=$(VLLM_MODEL) $(VLLM_PYTHON) -m pytest tests/plugins $(ARGS)

bench: $(VENV)/.installed-dev $(MADE)
	$(BIN)/python bench/simulate.py
	PYTHONPATH=$(abspath $(COMPILED)) $(BIN)/python bench/simulate.py
	$(BIN)/python bench/admission.py
	$(BIN)/python bench/queueing.py
	$(BIN)/python bench/gateway.py
	$(BIN)/python bench/class_effect.py

world: ARGS = --events 10000000 --jobs 2
world: $(VENV)/.installed-dev
	@$(BIN)/python -m maitred.testing.world $(ARGS)

# What .ci/run plays of it, in seconds: the seeds from 1 on.
world-in-short: $(VENV)/.installed-dev
	@$(BIN)/python -m maitred.testing.world --events 100000 --jobs 2
	@$(BIN)/python -m maitred.testing.world --cluster --events 40000 --jobs 2

stress: $(VENV)/.installed-dev
	@$(BIN)/python bench/stress.py $(ARGS)

clean:
	rm -rf $(VENV) $(COMPILED)

$(MADE): pyproject.toml tools/compile.py $(shell find src -name '*.py') | $(BIN)/python
	@rm -rf $(COMPILED)
	@MAITRED_COMPILE=1 MYPYC_OPT_LEVEL=$(MYPYC_OPT_LEVEL) nice $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(COMPILED) .
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "maitred needs Python 3.11 or later; say which: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "setting up $(VENV) ..." >&2
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . >&2
	@touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]' >&2
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' >&2
	@touch $@ $(VENV)/.installed
