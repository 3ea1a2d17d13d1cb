.PHONY: nccl-releases
nccl-releases: build ## the NCCL shim against the headers and libraries of NCCL 2.20 to the newest (downloads 2 GB once)
	@.venv/bin/python tests/cpp/nccl/check_releases.py build/$(PRESET)/src/nccl/librailweave_nccl.so
