# `make demo` and `make test` do all set-up themselves (scripts/setup); the other targets are for people who work on Railweave.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PRESET ?= dev
JOBS ?= $(shell nproc)
RAILWEAVE := .venv/bin/railweave
# scripts/setup puts a Go there when the machine has none that is new enough.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup build demo test test-cpp test-python test-torch lint tidy format stubs clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-22s %s\n", $$1, $$2}'

setup: ## Debian packages, .venv, the command line
	@scripts/setup

build: ## C++ libraries, tests and benchmarks (PRESET=dev|asan|tsan|clang)
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS)

demo: setup ## the main job: a skewed exchange over four emulated rails, three ways, as a table and a page
	@mkdir -p out
	@sudo=; [ "$$(id -u)" -eq 0 ] || sudo=sudo; \
	$$sudo $(RAILWEAVE) bench alltoallv --lab 2x4 --fabric examples/nccl-topo-4xH200-rail-aligned.xml --rate 400mbit \
	  --policies single-path,railweave --peer openmpi --repeat 3 --json out/demo.json --report out/demo.html

# Model checks take five minutes of two cores and wait for nothing, tests in namespaces mostly wait: so they run beside each other,
# the checks with what processor time is left.
test: setup test-cpp test-cuda ## all tests; the GPU kernels are compiled, no GPU is needed
	@mkdir -p out; nice -n 19 $(MAKE) -s protocol >out/protocol.log 2>&1 & checks=$$!; trap 'kill $$checks' INT TERM; \
	$(MAKE) test-python test-cni fuzz-short; status=$$?; \
	wait $$checks || status=1; cat out/protocol.log; exit $$status

# The wheel's UCX, where the virtual environment has it: it connects again after a rail came back, Debian's does not.
test-cpp: build ## C++ tests
	@RAILWEAVE_UCX_LIBRARY=$$(ls $(CURDIR)/.venv/lib/python3*/site-packages/libucx/lib/libucp.so.0 2>/dev/null || true) ctest --preset $(PRESET) -j 2

# Tests with labs one after the other: `lab down --all` is tested too, and rates on rails. pytest 9 and xdist 3.8 do not agree on its groups.
test-python: ## Python tests
	@.venv/bin/python -m pytest -q -n 3 -m 'not root'
	@.venv/bin/python -m pytest -q -m root

# Not part of `test`, as PyTorch's wheels bring 3 GB. What this virtual environment holds otherwise is .venv's.
test-torch: setup ## railweave.torch on CPU tensors (downloads PyTorch once, 3 GB)
	@test -x build/torch/bin/pytest || { .venv/bin/python -m venv build/torch && build/torch/bin/pip install -q torch numpy pytest; }
	@echo "import site; site.addsitedir('$$(ls -d $(CURDIR)/.venv/lib/python3*/site-packages)')" > $$(ls -d build/torch/lib/python3*/site-packages)/railweave.pth
	@build/torch/bin/python -m pytest -q -p no:xdist tests/python/pytorch

lint: ## formatters, linters, type checker
	@scripts/lint

tidy: ## clang-tidy over the C++ sources (minutes)
	@cmake --preset clang >/dev/null
	@git ls-files 'src/*.cpp' ':!src/python' ':!src/cuda' | xargs -P $(JOBS) -n 1 clang-tidy --quiet -p build/clang

format: ## rewrite sources with clang-format and ruff
	@git ls-files '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs -r clang-format -i
	@.venv/bin/ruff format -q . && .venv/bin/ruff check -q --fix .

stubs: setup ## python/railweave/_native.pyi from the extension module, after its bindings changed
	@.venv/bin/python -c 'from railweave import _native; import nanobind.stubgen as s; _native.Planner; del _native.__getattr__; s.main()' \
	  -q -m railweave._native -o python/railweave/_native.pyi

clean: ## remove what was built (not .venv)
	@rm -rf build out

-include make/*.mk
