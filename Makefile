# Two commands: `make demo` and `make test`. What they do lives in the `octavo` command and in pyproject.toml.
PYTHON ?= python3
# The CPU build here or on a machine with its own package index; on a GPU machine: make demo TORCH=torch (see README).
TORCH ?= torch==2.13.0
# The CUDA kernels take minutes to compile: left out where there is no GPU, unless asked for with CUDA=1.
CUDA ?= $(wildcard /dev/nvidiactl)
export CMAKE_ARGS := $(if $(CUDA),,-DOCTAVO_CUDA=OFF)
BIN := .venv/bin
INSTALLED := .venv/.installed
# Tests start hundreds of processes: each would compile all of octavo, two seconds of a core.
unexport PYTHONDONTWRITEBYTECODE
KERNELS := $(shell find kernels -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.cu*' -o -name '*.py' -o -name '*.t*ml' -o -name 'CMakeLists.txt' \))

# What computes shares the cores, and what waits runs beside it.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: help install demo test test-full compiled lint style types quick full bench kernels clean
help:
	@echo "make demo | test | test-full | compiled | lint | bench | kernels | install | clean    (variables: PYTHON, TORCH, ARGS for pytest)"

install: $(INSTALLED)

$(BIN)/python:
	@PYTHON="$(PYTHON)" sh .ci/preflight
	$(PYTHON) -m venv .venv

$(INSTALLED): $(BIN)/python pyproject.toml $(KERNELS)
	@echo "installing into .venv: a minute or two, and the download of torch"
	$(BIN)/python -m pip install --disable-pip-version-check "$(TORCH)" ./kernels -e ".[gateway,worker,celery,local,test]"
	@touch $@

demo: $(INSTALLED)
	$(BIN)/octavo demo

# The quick tier in minutes, and all there is; nothing waits for lint.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory -j3 style types quick

test-full: $(INSTALLED)
	@$(MAKE) --no-print-directory -j3 style types full

lint: style types

style: $(INSTALLED)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

quick: $(INSTALLED)
	$(PYTEST) $(ARGS)

full: $(INSTALLED)
	$(PYTEST) --tier full $(ARGS)

# After a change of CUDA sources: compiles them all, runs what can run without a GPU, and records that. Needs nvcc.
compiled: $(INSTALLED)
	$(BIN)/python tests/kernels/compiled.py -n 3 --dist loadfile $(ARGS)

bench: $(INSTALLED)
	$(BIN)/octavo bench engine && $(BIN)/octavo bench service

# The kernels as a wheel for every GPU that has its own machine code, PTX for later ones; needs nvcc, not a GPU.
kernels: $(BIN)/python
	CMAKE_ARGS= $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist ./kernels

clean:
	rm -rf .venv build dist kernels/build .pytest_cache .mypy_cache .ruff_cache .hypothesis .octavo
