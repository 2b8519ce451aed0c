# make demo      compare methods on unseen domains with the data that comes with the package
# make test      lint, types and tests, in five minutes
# make test-all  also what takes longer: every combination of methods, drills, a browser, Ray, a proxy; with coverage
# make docs      build the site of the documentation into site/ (make docs-serve: show it while you write)
# make wheel     build the wheel, install it in a new environment and use it there
# make release   build sdist and wheel into dist/ and check them (DRAFT=1: between releases); uploads nothing
# make setup     the environment that they need (they call it themselves)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
COVER ?=  # options of pytest that measure coverage; set by test-all

.PHONY: setup demo test test-all test-rest types federations other-tests slow-federations slow-tests wheel docs \
  docs-serve release clean
.DEFAULT_GOAL := demo

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fedbeyond needs Python 3.11 or newer; try: make setup PYTHON=python3.11"; exit 1; }
	@echo "setting up $(VENV) (PyTorch is large: this takes a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/ready-to-test: $(VENV)/ready
	@echo "adding what tests need: linters, a browser's driver, Flower, Ray, ONNX, TensorBoard"
	@$(INSTALL) --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/fedbeyond bench benchmarks/demo.toml

test: $(VENV)/ready-to-test
	$(BIN)/ruff format --check src tests benchmarks docs examples .ci hatch_build.py
	$(BIN)/ruff check src tests benchmarks docs examples .ci hatch_build.py
	$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory --jobs 3 federations types other-tests  # at once: the first mostly wait, and go first

test-all: export COVER = --cov --cov-report=
test-all:
	@rm -f .coverage .coverage.*
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

test-rest: $(VENV)/ready-to-test
	@$(MAKE) --no-print-directory slow-tests
	@$(MAKE) --no-print-directory slow-federations  # alone: drills kill processes in the middle of their work
	@test -z '$(COVER)' || { $(BIN)/coverage combine --quiet; echo "lines of src/ that no test ran:"; $(BIN)/coverage report; }

types:
	$(BIN)/mypy

federations slow-federations other-tests slow-tests: export COVERAGE_FILE = $(CURDIR)/.coverage.$@

federations:
	$(BIN)/pytest -m 'loopback and not slow' $(COVER)

other-tests:
	nice $(BIN)/pytest --numprocesses 2 --dist worksteal -m 'not loopback and not slow' $(COVER)

slow-federations:  # without coverage, which slows the processes of drills and is lost where they are killed
	$(BIN)/pytest -m 'loopback and slow'

slow-tests:
	nice $(BIN)/pytest --numprocesses 2 --dist worksteal -m 'not loopback and slow' $(COVER)

docs docs-serve: export NO_MKDOCS_2_WARNING = 1  # of the theme; decision 24 has the consequence

docs: $(VENV)/ready-to-test
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/ready-to-test
	$(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8000

wheel:
	@PYTHON=$(PYTHON) .ci/wheel

release: $(VENV)/ready-to-test
	@PYTHON=$(PYTHON) $(BIN)/python .ci/release.py $(if $(DRAFT),--draft)

clean:
	rm -rf $(VENV) runs .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis site dist
