.PHONY: nccl-releases bench-shim test-sanitized-shim
nccl-releases: build ## the NCCL shim against the headers and libraries of NCCL 2.20 to the newest (downloads 4 GB once)
	@.venv/bin/python tests/cpp/nccl/check_releases.py build/$(PRESET)/src/nccl/librailweave_nccl.so

bench-shim: build ## what the NCCL shim costs the host (needs no GPU); SHIMS="a.so b.so" measures several builds in turns
	@build/$(PRESET)/benchmarks/nccl/host_cost $(SHIMS)

# Not part of `make test`, as test-sanitized.
test-sanitized-shim: ## the tests of the NCCL shim and of the GPU kernels' roles under the address, undefined-behaviour and thread sanitizers
	@set -e; export RAILWEAVE_UCX_LIBRARY=$$(ls $(CURDIR)/.venv/lib/python3*/site-packages/libucx/lib/libucp.so.0 2>/dev/null || true); \
	for preset in asan tsan; do \
	  cmake --preset $$preset >/dev/null; \
	  cmake --build --preset $$preset -j $(JOBS) --target nccl_test gpu_protocol_test gpu_buffers_test gpu_rails_test gpu_rails_process_test; \
	  for room in nccl cuda; do ctest --test-dir build/$$preset/tests/cpp/$$room -j 2 --output-on-failure; done; \
	done
