# Everything starts here. Each target makes .venv where it is missing; nothing is assumed but Python 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help quickstart test test-all check format bench clean

help:
	@echo "make quickstart   set up, fetch a real pre-trained BERT and data, fine-tune it, measure it, use it"
	@echo "make test         the test suite (minutes);  make test-all  with the slow ones"
	@echo "make check        lint, types, layering"
	@echo "make bench        measure against peers; needs UNMASK_DATA (see docs/benchmarks.md)"

quickstart: $(VENV)/.run
	$(BIN)/unmask quickstart

# One thread a process: two processes share two cores better than two teams of threads do. A file stays in one process:
# what its tests share is made once.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: $(VENV)/.dev
	HYPOTHESIS_PROFILE=thorough OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/tokenizer.py
	$(BIN)/python benchmarks/encoder.py
	$(BIN)/python benchmarks/attention_groups.py
	$(BIN)/python benchmarks/corpus.py
	$(BIN)/python benchmarks/pretrain.py
	$(BIN)/python benchmarks/pretrain.py --profile
	$(BIN)/python benchmarks/pretrain.py --start
	$(BIN)/python benchmarks/pretrain.py --learn 200
	$(BIN)/python benchmarks/finetune.py --speed
	$(BIN)/python benchmarks/batch_invariance.py
	$(BIN)/python benchmarks/decode.py

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Unmask needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing (torch is the large one) ..."
	$(PIP) --upgrade pip
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e ".[dev,bench]"
	@touch $@
