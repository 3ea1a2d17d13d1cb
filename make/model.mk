# SimGrid is built from its source package, once, in a virtual environment of its own (4 minutes on 2 cores). pybind11 3 breaks it.
SIMGRID := build/simgrid-venv
SIMGRID_LIB = $(shell $(SIMGRID)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
SIMGRID_PACKAGES := libboost-dev libboost-context-dev libeigen3-dev nlohmann-json3-dev

.PHONY: simgrid-goldens bench-model bench-scale

simgrid-goldens: $(SIMGRID)/ready ## asks SimGrid again for the answers that the model is tested against
	@LD_LIBRARY_PATH=$(SIMGRID_LIB) .venv/bin/python tests/goldens/simgrid/make_goldens.py --simgrid-python $(SIMGRID)/bin/python

bench-model: $(SIMGRID)/ready ## the model against SimGrid, and 1,024 GPUs
	@LD_LIBRARY_PATH=$(SIMGRID_LIB) .venv/bin/python benchmarks/model/against_simgrid.py --simgrid-python $(SIMGRID)/bin/python
	@$(MAKE) -s bench-scale

bench-scale: ## how long predicting 1,024 GPUs takes (docs/model.md)
	@.venv/bin/python benchmarks/model/scale.py

$(SIMGRID)/ready:
	@for package in $(SIMGRID_PACKAGES); do dpkg-query -W $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	if [ -n "$$missing" ]; then echo "SimGrid needs:$$missing (apt-get install)" >&2; exit 1; fi
	@python3 -m venv $(SIMGRID)
	@echo 'pybind11<3' > $(SIMGRID)/constraints.txt
	@PIP_CONSTRAINT=$(CURDIR)/$(SIMGRID)/constraints.txt CMAKE_BUILD_PARALLEL_LEVEL=2 MAKEFLAGS=-j2 $(SIMGRID)/bin/pip install -q 'simgrid==4.1'
	@touch $@
