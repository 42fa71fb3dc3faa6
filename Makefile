# All it needs is python3 with venv. Everything is installed into .venv, once; a second call is quick.

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip --disable-pip-version-check install -qq -c constraints.txt
NEEDS := $(VENV)/.made pyproject.toml constraints.txt

# Tests start Python thousands of times: compiled modules are kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-full lint format bench torture audit ui wheel clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo ui ## train a small model for half a minute, recorded, and look at the run
	@$(VENV)/bin/stepwell demo $(ARGS)

test: $(VENV)/.dev $(VENV)/.debian ui ## run the tests, in about six minutes (ARGS="-k journal -x" goes to pytest)
	@$(PY) -m pytest $(ARGS)

test-full: $(VENV)/.dev $(VENV)/.debian ui ## run all tests: more cases of each kind, and the slow ones
	@$(PY) -m pytest -m "not torture" $(ARGS)

lint: $(VENV)/.dev ## check style, formatting and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

format: $(VENV)/.dev ## format the code and mend what can be mended by itself
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

bench: $(VENV)/.bench ## measure the cost of recording, next to other tools
	@$(PY) -m benchmarks $(ARGS)

torture: $(VENV)/.dev ## a training job under every fault, and soak tests: about half an hour
	@$(PY) -m pytest -m torture --numprocesses=0 -o faulthandler_timeout=0 $(ARGS)

audit: $(VENV)/.dev ## look up known vulnerabilities of everything in .venv (needs the internet)
	@$(INSTALL) pip-audit
	@$(PY) -m pip_audit --local --skip-editable

ui: $(VENV)/.made ## build the web page, if its sources have changed
	@$(PY) tools/build_page.py

wheel: ui ## build an installable wheel, with the page inside, into dist/
	@$(PY) -m pip --disable-pip-version-check wheel -q --no-deps -w dist .

clean: ## remove .venv, caches and build products; recorded runs stay
	rm -rf $(VENV) dist build ui/node_modules src/stepwell/dashboard/static .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 10) and "stepwell needs Python 3.10 or newer, this is " + v + "; try: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(NEEDS)
	@echo "Installing stepwell and PyTorch into $(VENV). The first time this may take a minute or two."
	@$(INSTALL) -e '.[torch]'
	@touch $@

$(VENV)/.dev: $(NEEDS)
	@echo "Installing stepwell and what its tests need into $(VENV). The first time this may take a minute or two."
	@$(INSTALL) -e '.[test,lint]'
	@touch $@

# Programs that tests use and pip cannot install. Tests that miss one are skipped and say so.
$(VENV)/.debian: $(VENV)/.made
	@if ! command -v chromium >/dev/null || ! command -v dot >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing chromium and graphviz, which some tests use."; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium graphviz >/dev/null \
	    || echo "They cannot be installed: tests that use them are skipped."; \
	  else \
	    echo "chromium or graphviz is missing: tests that use them are skipped."; \
	  fi; \
	fi
	@touch $@

# Without its stamp a failed install is tried again the next time.
$(VENV)/.bench: $(NEEDS)
	@echo "Installing stepwell and the tools to compare it with into $(VENV). The first time this may take a few minutes."
	@if $(INSTALL) -e '.[bench]'; then touch $@; else \
	  echo "Not all of them could be installed; the comparison is with those that are there."; \
	  $(INSTALL) -e '.[torch]'; \
	fi
