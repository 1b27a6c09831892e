# Every target sets up its own environment in .venv. `make PYTHON=python3.12 test` uses another Python.
# On Linux pip takes PyTorch with CUDA, gigabytes, unless it finds another build; uv takes the one for the CPU:
# make demo INSTALL="uv pip install --torch-backend=cpu"

PYTHON  ?= python3
BIN     := .venv/bin
INSTALL ?= $(BIN)/python -m pip install
CORE    := .venv/.core
READY   := .venv/.ready
DOCS    := .venv/.docs

# Tests run in two processes; one thread each, so that they do not fight over the cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
JOBS     ?= 2

.PHONY: demo test test-slow test-engines test-faults lint docs bench bench-peers clean

# The demo needs no Ray, Flower or Keras.
demo: $(CORE)
	$(BIN)/fedkin demo

test: lint
	$(TEST_ENV) $(BIN)/pytest -q -n $(JOBS) --dist loadfile

test-slow: $(READY)
	$(TEST_ENV) $(BIN)/pytest -q -n $(JOBS) --dist loadfile -m slow

# The engines on other machines in full: Ray and Flower with real servers on loopback.
test-engines: $(READY)
	$(TEST_ENV) $(BIN)/pytest -q -m engines

# Kills, damage, odd inputs, lies and accidents, many of each; prints a table. docs/reliability.md shows one.
# FAULTS='--only kills' runs a part.
test-faults: $(READY)
	$(TEST_ENV) $(BIN)/python -m tests.faults.run $(FAULTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, notebooks executed, in docs/_build/html; then it is looked at in a browser.
docs: $(DOCS)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	$(TEST_ENV) $(BIN)/pytest -q -m site tests/site

# QUICK=--quick: the short form.
bench: $(READY)
	for script in $(filter-out benchmarks/timing.py benchmarks/processes.py benchmarks/which_method.py benchmarks/since.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script $(QUICK) || exit 1; done

# Rounds of FedAvg against other frameworks; part of bench, too. Makes an environment for each of them.
bench-peers: $(READY)
	$(BIN)/python benchmarks/peers.py $(QUICK)

# torch first and pinned, so that no other package pulls a build of its own.
$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --quiet -c constraints.txt torch
	$(INSTALL) --quiet -c constraints.txt -e .
	touch $@

$(READY): $(CORE)
	$(INSTALL) --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(DOCS): $(READY)
	$(INSTALL) --quiet -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist fedkin-demo docs/_build docs/reference
