# Two commands for a newcomer: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# The CPU build that the development machines carry; the package itself asks for a floor only.
TORCH ?= torch==2.13.0
# Flower caps typer, rich and packaging, so what needs it has an environment of its own.
INTEGRATIONS := .venv-integrations
FLOWER ?= flwr==1.41.0

# mkdocs reads the source and runs none of it, so its environment has no torch.
DOCS := .venv-docs
# What `pip install gradleak` gives and nothing else, for the bill of materials.
SBOM := .venv-sbom

.PHONY: demo test test-fast test-integrations fuzz lint types docs dist-check sbom check setup assets clean

demo: assets
	$(BIN)/gradleak demo

# One more worker than there are cores, since some tests wait; four at most.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, (os.cpu_count() or 1) + 1))")

test: assets
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

# For daily work: tiny models, no commands in processes of their own, no real weights.
test-fast: setup
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow" tests --ignore=tests/updates/integrations

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

# The site, in site/; what a page names and is not there is an error.
docs: $(DOCS)/ready
	$(DOCS)/bin/mkdocs build --strict --quiet

# Wheel and source archive in dist/, each installed and tried in an empty environment.
dist-check: setup
	$(BIN)/python .ci/dist_check.py

# What a user gets with gradleak, as CycloneDX.
sbom: dist-check
	rm -rf $(SBOM) && $(PYTHON) -m venv $(SBOM)/tool && $(PYTHON) -m venv --without-pip $(SBOM)/user
	$(SBOM)/tool/bin/python -m pip install --quiet cyclonedx-bom
	$(SBOM)/tool/bin/python -m pip --python $(SBOM)/user install --quiet "$(TORCH)" dist/*.whl
	$(SBOM)/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON \
		-o dist/gradleak.cdx.json $(SBOM)/user/bin/python

check: test lint types docs dist-check

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

$(DOCS)/ready: pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/wanted.txt
	$(DOCS)/bin/python -m pip install --quiet --requirement $(DOCS)/wanted.txt
	touch $@

clean:
	rm -rf .venv $(INTEGRATIONS) $(DOCS) $(SBOM) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
