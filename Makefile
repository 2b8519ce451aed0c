# make demo   compare methods on unseen domains with the data that comes with the package
# make test   lint, types and all tests
# make setup  the environment both need (they call it themselves)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test types federations other-tests clean
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
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory --jobs 3 federations types other-tests  # at once: the first mostly wait, and go first

types:
	$(BIN)/mypy

federations:
	$(BIN)/pytest -m loopback

other-tests:
	nice $(BIN)/pytest --numprocesses 2 -m 'not loopback'

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
