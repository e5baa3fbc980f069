# Two commands for a newcomer: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# The CPU build that the development machines carry; the package itself asks for a floor only.
TORCH ?= torch==2.13.0
# Flower caps typer, rich and packaging, so what needs it has an environment of its own.
INTEGRATIONS := .venv-integrations
FLOWER ?= flwr==1.41.0

.PHONY: demo test test-fast test-integrations fuzz lint types check setup assets clean

demo: assets
	$(BIN)/gradleak demo

test: assets
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

# For daily work: tiny models, no commands in processes of their own, no real weights.
test-fast: setup
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal -m "not slow" tests --ignore=tests/updates/integrations

test-integrations: $(INTEGRATIONS)/ready
	$(INTEGRATIONS)/bin/python -m pytest -n 2 tests/updates/integrations
	$(INTEGRATIONS)/bin/python -m pytest tests/experiments/test_ray.py tests/promises/test_help.py tests/defenses/test_deployed.py

# Every command with random and hostile arguments and files; counts per command and exit code.
CASES ?= 2000
fuzz: setup
	$(BIN)/python tests/promises/fuzz_commands.py $(CASES)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

check: test lint types

setup: .venv/ready

assets: setup
	$(BIN)/gradleak assets pull minilm wikitext2

.venv/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

$(INTEGRATIONS)/ready: pyproject.toml Makefile
	test -x $(INTEGRATIONS)/bin/python || $(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet "$(TORCH)"
	$(INTEGRATIONS)/bin/python -m pip install --quiet --editable ".[flower,ray,lora]" "$(FLOWER)" accelerate hatchling pytest pytest-xdist hypothesis
	touch $@

clean:
	rm -rf .venv $(INTEGRATIONS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
