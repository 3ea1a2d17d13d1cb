.PHONY: nccl-releases bench-shim test-sanitized-shim
nccl-releases: build ## the NCCL shim against the headers and libraries of NCCL 2.20 to the newest (downloads 4 GB once)
	@.venv/bin/python tests/cpp/nccl/check_releases.py build/$(PRESET)/src/nccl/librailweave_nccl.so

bench-shim: build ## what the NCCL shim costs the host (needs no GPU); SHIMS="a.so b.so" measures several builds in turns
	@build/$(PRESET)/benchmarks/nccl/host_cost $(SHIMS)

# Not part of `make test`, as test-sanitized.
test-sanitized-shim: ## the tests of the NCCL shim under the address, undefined-behaviour and thread sanitizers
	@set -e; $(call sanitized,,,nccl_test,nccl)
