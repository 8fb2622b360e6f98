# The words a developer types. Everything installs into .venv on first need; Python 3.11+ and make
# are all that must be there.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin

# With few cores one thread per process is the fastest, and it keeps float sums in one order.
export OMP_NUM_THREADS ?= 1
# glibc: keep freed memory for the next tensor; gains about 10 % of training (docs/benchmarks.md).
export MALLOC_MMAP_THRESHOLD_ ?= 33554432
export MALLOC_TRIM_THRESHOLD_ ?= 8589934592
export MALLOC_TOP_PAD_ ?= 67108864

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu check lint types docs bench clean

help:
	@echo "make demo    train on a small scene, print a table, draw pictures (about three minutes)"
	@echo "make test    the test suite, without what takes minutes or an accelerator"
	@echo "make test-gpu  what needs an accelerator"
	@echo "make check   lint, format, types, import contracts, documentation"
	@echo "make docs    build the documentation into site/"
	@echo "make bench   the speed benchmarks of docs/benchmarks.md (about ten minutes)"
	@echo "make clean   remove the environment and everything that was built; runs/ stays"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet -c constraints.txt -e '.[board,study,gpu,pettingzoo,ray,slurm,dev,docs]'
	touch $(STAMP)

demo: $(STAMP)
	$(RUN)/lockstep demo

test: $(STAMP)
	$(RUN)/python -m pytest -q -n auto --dist worksteal -m "not slow and not gpu"

test-slow: $(STAMP)
	$(RUN)/python -m pytest -q -m slow

# Without checks of types at run time, through which neither Triton nor torch.compile sees.
test-gpu: $(STAMP)
	$(RUN)/python -m pytest -q -ra -o addopts= -m gpu

check: lint types docs

lint: $(STAMP)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/lint-imports

types: $(STAMP)
	$(RUN)/mypy

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=true $(RUN)/mkdocs build --strict --quiet

bench: $(STAMP)
	$(RUN)/python benchmarks/world_uav_mec.py --scenario paper
	$(RUN)/python benchmarks/world_uav_mec.py --scenario reference
	$(RUN)/python benchmarks/training_uav_mec.py

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
