.PHONY: cuda cuda-12 cuda-sm70 setup-cuda test-cuda test-sanitized-cuda test-sanitized-short test-mutants
CUDA_HOST_TESTS = -R '^(DeviceScope|DeviceOfAThread|CaptureOf|EndOfProcess|[A-Za-z/]+OfCommunicator)' --no-tests=error --output-on-failure
USE_CUDA = if [ -x .cuda/bin/nvcc ]; then export CUDACXX=$(CURDIR)/.cuda/bin/nvcc CUDAToolkit_ROOT=$(CURDIR)/.cuda; fi

setup-cuda: ## a CUDA toolkit in .cuda where the machine has none
	@scripts/setup-cuda

cuda: setup-cuda ## librailweave_cuda.so with all kernels, its tests and benchmarks, in build/cuda (needs no GPU)
	@$(USE_CUDA); \
	cmake -G Ninja -B build/cuda -DRAILWEAVE_CUDA=ON -DRAILWEAVE_TESTS=ON -DRAILWEAVE_BENCHMARKS=ON >/dev/null && \
	cmake --build build/cuda -j $(JOBS) --target railweave_cuda railweave_nccl gpu_protocol_test gpu_device_test gpu_communicator_test gpu_exchange link_sleep

cuda-sm70: setup-cuda ## that the kernels have no instruction that sm_70 lacks, which CUDA 13 does not compile for (needs no GPU)
	@scripts/check-sm70

cuda-12: cuda ## that the sources of that build keep to the headers of CUDA 12.1, the oldest toolkit they are for (needs no GPU)
	@scripts/check-cuda12

test-cuda: cuda cuda-12 cuda-sm70 ## what of the CUDA build needs no GPU: kernels compile, for sm_70 too; CUDA 12.1; contexts, captures, communicators; installing
	@ctest --test-dir build/cuda/tests/cpp/cuda $(CUDA_HOST_TESTS)
	@ctest --test-dir build/cuda/tests/cpp/nccl -R '^nccl_install$$' --no-tests=error --output-on-failure

# Not part of `make test`, as test-sanitized. In folders of their own: nvcc knows no sanitizer, and these tests need no kernel.
test-sanitized-cuda: setup-cuda ## the tests of the CUDA host side and of the GPU kernels' roles under those sanitizers (compiles no kernel)
	@set -e; $(USE_CUDA); $(call sanitized,cuda-,-DRAILWEAVE_CUDA=ON,gpu_protocol_test gpu_device_test gpu_communicator_test gpu_buffers_test gpu_rails_test gpu_rails_process_test,cuda)

# Not part of `make test` either, as old thread sanitizers do not start on every kernel.
test-sanitized-short: setup-cuda ## of those whole communicators under the thread sanitizer: two minutes, most of them to build the engine again
	@$(USE_CUDA); cmake --preset tsan -B build/cuda-tsan -DRAILWEAVE_CUDA=ON >/dev/null && \
	cmake --build build/cuda-tsan -j $(JOBS) --target gpu_device_test gpu_communicator_test
	@ctest --test-dir build/cuda-tsan/tests/cpp/cuda $(CUDA_HOST_TESTS)

test-mutants: ## do the tests of the kernels' roles catch each of some mistakes in these? (needs no GPU; ten minutes, docs/cuda.md)
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gpu_protocol_test gpu_rails_test
	@RAILWEAVE_UCX_LIBRARY=$$(ls $(CURDIR)/.venv/lib/python3*/site-packages/libucx/lib/libucp.so.0 2>/dev/null || true) \
	  tests/cpp/cuda/mutants.py build/$(PRESET)
