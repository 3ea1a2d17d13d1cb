.PHONY: bench-planner
# Empty: the table of docs/planner.md in full. `make bench` has a part of it.
PLANNER_SWEEP ?=
bench-planner: build ## plans against the exact optimum (hours; goes on where it stopped), and planning time (docs/planner.md)
	@.venv/bin/python benchmarks/planner/planning_time.py --timer build/$(PRESET)/benchmarks/planner/planner_time
	@.venv/bin/python benchmarks/planner/sparse.py
	@.venv/bin/python benchmarks/planner/sweep.py $(PLANNER_SWEEP)
