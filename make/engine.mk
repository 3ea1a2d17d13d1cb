SOAK_MINUTES ?= 30
# Another seed each time; a finding says how to repeat it.
SOAK_OPTIONS ?=

.PHONY: bench-messages test-sanitized soak soak-engine
soak: soak-engine soak-cni ## both soaks: the engine's, then the Kubernetes side's (an hour and a half, as root)

soak-engine: setup ## random exchanges in labs under random faults, everything checked (SOAK_MINUTES=30, SOAK_OPTIONS='--seed 1 --job 7')
	@sudo=; [ "$$(id -u)" -eq 0 ] || sudo=sudo; \
	$$sudo .venv/bin/python benchmarks/engine/soak.py --minutes $(SOAK_MINUTES) $(SOAK_OPTIONS)

bench-messages: build ## what messages over a rail cost the engine's thread (docs/engine.md)
	@build/$(PRESET)/benchmarks/engine/message_cpu
# $(call sanitized,prefix of the build folders,options for CMake,targets,rooms)
define sanitized
export RAILWEAVE_UCX_LIBRARY=$$(ls $(CURDIR)/.venv/lib/python3*/site-packages/libucx/lib/libucp.so.0 2>/dev/null || true); \
	for preset in asan tsan; do \
	  cmake --preset $$preset -B build/$(1)$$preset $(2) >/dev/null; \
	  cmake --build build/$(1)$$preset -j $(JOBS) --target $(3); \
	  for room in $(4); do ctest --test-dir build/$(1)$$preset/tests/cpp/$$room -j 2 --output-on-failure; done; \
	done
endef

# Not part of `make test`: building the engine twice more takes minutes on a fresh machine.
test-sanitized: ## the engine's tests under the address, undefined-behaviour and thread sanitizers
	@set -e; $(call sanitized,,,engine_test engine_process_test capi_test,engine capi)
