# Fuzzing (docs/fuzzing.md). One target at a time: FUZZ_TARGETS=cluster; fewer inputs: FUZZ_RUNS=10000.
FUZZ_TARGETS ?= cluster fabric_json matrix nccl_topology node_template
FUZZ_RUNS ?= 1000000
# Parsers in Python, with a mutation fuzzer of their own.
FUZZ_PYTHON_TARGETS ?= advice calibration hwloc lspci_tree machine_tools measurements nccl_lint nvml recording topo_matrix topology_places

.PHONY: fuzz fuzz-build fuzz-short fuzz-python

fuzz-build:
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j $(JOBS) $(addprefix --target fuzz_,$(FUZZ_TARGETS))

fuzz: fuzz-build fuzz-python ## a million inputs for each parser, under sanitizers
	@mkdir -p build/fuzz/found
	@set -e; for target in $(FUZZ_TARGETS); do \
	  mkdir -p build/fuzz/found/$$target; \
	  echo "fuzz: $$target, $(FUZZ_RUNS) inputs"; \
	  build/fuzz/tests/fuzz/fuzz_$$target -runs=$(FUZZ_RUNS) -timeout=60 -rss_limit_mb=4096 -max_len=4096 -print_final_stats=1 \
	    -verbosity=0 -artifact_prefix=build/fuzz/found/$$target- build/fuzz/found/$$target tests/fuzz/corpus/$$target; \
	done

fuzz-short: fuzz-build ## the corpus and a few seconds of new inputs for each parser
	@ctest --test-dir build/fuzz/tests/fuzz --output-on-failure
	@$(MAKE) -s fuzz-python FUZZ_RUNS=5000

fuzz-python: # FUZZ_RUNS inputs for each parser in Python
	@set -e; for target in $(FUZZ_PYTHON_TARGETS); do .venv/bin/python tests/fuzz/fuzz_machine.py $$target $(FUZZ_RUNS); done
