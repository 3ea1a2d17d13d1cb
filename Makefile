# `make demo` and `make test` do all set-up themselves (scripts/setup); the other targets are for people who work on Railweave.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PRESET ?= dev
JOBS ?= $(shell nproc)
RAILWEAVE := .venv/bin/railweave

.PHONY: help setup build demo test test-cpp test-python lint format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: ## Debian packages, .venv, the command line
	@scripts/setup

build: ## C++ libraries, tests and benchmarks (PRESET=dev|asan|tsan|clang)
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS)

test: setup test-cpp test-python ## all tests

test-cpp: build ## C++ tests
	@ctest --preset $(PRESET) -j 2

test-python: ## Python tests
	@.venv/bin/python -m pytest -q

lint: ## formatters, linters, type checker
	@scripts/lint

format: ## rewrite sources with clang-format and ruff
	@git ls-files '*.cpp' '*.hpp' '*.h' '*.c' | xargs -r clang-format -i
	@.venv/bin/ruff format -q . && .venv/bin/ruff check -q --fix .

clean: ## remove what was built (not .venv)
	@rm -rf build out

-include make/*.mk
