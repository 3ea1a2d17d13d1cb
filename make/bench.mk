# One after the other, as they share the cores, what most people look at first. One that fails does not keep the others from running.
# bench-model is not here, as SimGrid has to be built for it, nor is what needs GPUs (benchmarks/gpus/evaluate.py).
BENCHES := demo bench-messages bench-shim bench-scale bench-planner bench-cni
# The machines whose linear programs take seconds; --replan, as plans of another planner may be recorded.
bench: export PLANNER_SWEEP := --machines mesh4,dgx-1v,2x4 --replan railweave

.PHONY: bench
bench: ## all benchmarks that need no GPU, in some minutes (docs/bench.md); root for labs and pods
	@failed=; for each in $(BENCHES); do \
	  printf '\n== make %s, from %s\n' $$each "$$(date -u +%FT%TZ)"; \
	  $(MAKE) -s $$each || failed="$$failed $$each"; \
	done; \
	if [ -n "$$failed" ]; then echo "bench: failed:$$failed" >&2; exit 1; fi
