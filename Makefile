# Everything a person types. Python, make and (for Prometheus and Chromium) apt are enough.
# The Python environment is .venv; big downloads and builds go to ~/.cache/tokenswarm and stay.
PYTHON3 ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 18

setup: $(STAMP)  ## the Python environment in .venv

$(STAMP): pyproject.toml
	@test -x $(PYTHON) || $(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install -q --disable-pip-version-check -e '.[dev,sharegpt]'
	@touch $@

demo: setup  ## the main job against the embedded engine: live table, summary, report
	$(PYTHON) -m tokenswarm.demo

test: setup debian-tools  ## all tests that need no real engine (under 6 minutes)
	$(PYTHON) -m pytest -q -n 2 tests/unit tests/property
	$(PYTHON) -m pytest -q -m "not engine" tests/e2e tests/k8s --durations=10

check: setup  ## format, lint, types, layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PYTHON) -m pytest -q tests/unit/test_layers.py

format: setup  ## put the code into shape
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:  ## remove what was made here, but not the cache
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

include benchmarks/setup/targets.mk
