# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint fast bench docs clean chromium

demo: $(VENV)/.demo
	$(BIN)/sinkgate diagnose smollm2-135m --out demo

test: $(VENV)/.dev lint chromium
	$(BIN)/python -m pytest --durations=25

fast: $(VENV)/.dev chromium
	$(BIN)/python -m pytest -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The studio's tests look at its pages in a real browser; what they saw is kept in build/screens.
chromium:
	@.ci/chromium

# The benchmarks write benchmarks/results/*.json; `make docs` puts their numbers into README and docs.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

docs: $(VENV)/.dev
	$(BIN)/python -m benchmarks.render

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo build dist
