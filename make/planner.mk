.PHONY: bench-planner
bench-planner: build ## plans against the exact optimum, and planning time (docs/planner.md has the results)
	@.venv/bin/python benchmarks/planner/sweep.py --timer build/$(PRESET)/benchmarks/planner/planner_time
