# make demo | check | test | bench | figures: each works alone in a fresh clone and shares .venv with the others.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
PANDAS2 := $(VENV)/pandas2
# Each test has one thread; a file stays with one worker, whose models its tests share.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --doctest-modules src/postmatch tests

# Which part of the benchmark `make bench` runs; POSTMATCH_DATA names the folder that holds tabular/.
BENCH ?= --tables abalone breast_cancer --seeds 0 --mechanisms mcar --methods mean knn postmatch --output build/imputation.jsonl

.DEFAULT_GOAL := help
.PHONY: help demo check test bench figures lint clean

help:
	@echo "make demo     fill the example table and write its report, in under two minutes"
	@echo "make check    format, lint, types, fast tests and doctests"
	@echo "make test     all of that, the slow tests, and those of tables again with pandas 2"
	@echo "make bench    a small part of the imputation benchmark"
	@echo "make figures  the pictures of docs/; POSTMATCH_DATA names the folder with the images"
	@echo "make clean    remove what these made, but not $(VENV)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $(CORE) $@

# Another pandas, which goes before the one installed where PYTHONPATH names it.
$(PANDAS2): | $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ "pandas==2.3.*" pytz

demo: $(CORE)
	@mkdir -p demo
	@rm -rf demo/model
	$(BIN)/postmatch impute examples/penguins.csv -o demo/filled.csv --model demo/model --quick
	$(BIN)/postmatch report examples/penguins.csv -o demo/report.html --model demo/model
	@echo
	@echo "The filled table:  demo/filled.csv"
	@echo "The report:        demo/report.html  (open it in a browser)"

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint
	$(PYTEST) -m "not slow"

test: lint $(PANDAS2)
	SCIPY_ARRAY_API=1 $(PYTEST)
	PYTHONPATH=$(PANDAS2) $(BIN)/python -m pytest --quiet -m "not slow" tests/test_estimators.py tests/tables

bench: $(DEV)
	@mkdir -p build
	$(BIN)/python benchmarks/imputation.py $(BENCH)

# Pictures of images need mnist/ and omniglot/ in the folder that POSTMATCH_DATA names, diagrams need nothing.
figures: $(DEV)
	$(BIN)/python benchmarks/figures.py

clean:
	rm -rf demo build .mypy_cache .ruff_cache .pytest_cache .hypothesis
