# Every command creates the virtual environment .venv itself. make demo installs only what the demo needs.
PYTHON ?= python3
BIN := .venv/bin
LAB := .venv/.lab
INSTALLED := .venv/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: test check docs floors release-check torture demo benchmark clean

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadgroup -q

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The site, in site/: open site/index.html. Broken links, missing references and pages without a place are errors.
docs: $(INSTALLED)
	$(BIN)/python tools/cli_page.py
	$(BIN)/python -m mkdocs build --strict

# All that a release needs, without publishing: build, check the files, try them in a fresh environment.
release-check: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_release.py dist

# The lowest versions that pyproject.toml allows, and this torch. Only Linux builds for GPUs of torch 2.6 are on PyPI: 6 GB.
# The core allows an older numpy than the lab, so its tests run a second time with that.
TORCH ?= 2.6.0
FLOOR_TESTS ?= tests/integrations tests/lab/test_cli.py tests/lab/test_compare.py tests/lab/test_datasets.py
CORE_FLOOR_TESTS ?= tests/contracts tests/loader tests/methods tests/policies tests/integrations/test_lightning.py
floors:
	rm -rf .venv-floors
	$(PYTHON) -m venv .venv-floors
	$(PYTHON) tools/floors.py $(TORCH) > .venv-floors/floors.txt
	$(PYTHON) tools/floors.py $(TORCH) --core > .venv-floors/core.txt
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-floors/floors.txt \
		--editable '.[keras,lab,lightning,transformers]' hypothesis jax playwright pytest pytest-xdist torchdata
	.venv-floors/bin/python -m pytest -n auto --dist loadgroup -q $(FLOOR_TESTS)
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check --requirement .venv-floors/core.txt
	.venv-floors/bin/python -m pytest -n auto --dist loadgroup -q $(CORE_FLOOR_TESTS)

# make torture KILLS=1000 takes hours.
torture: $(INSTALLED)
	$(BIN)/python -m tests.torture $(if $(KILLS),--kills $(KILLS))

demo: $(LAB)
	$(BIN)/selective-backprop demo

benchmark: $(INSTALLED)
	$(BIN)/python benchmarks/selection_step.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/calls.py
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/lab_overhead.py
	$(BIN)/python benchmarks/advice.py
	$(BIN)/python benchmarks/forward_reuse.py
	$(BIN)/python benchmarks/epoch.py
	$(BIN)/python benchmarks/exchange.py

$(LAB): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[lab]'
	touch $@

$(INSTALLED): $(LAB)
	$(INSTALL) '.[dev,docs,keras,lab,lightning,transformers,trl]'
	touch $@

clean:
	rm -rf .venv .venv-floors dist site .mypy_cache .ruff_cache .hypothesis
