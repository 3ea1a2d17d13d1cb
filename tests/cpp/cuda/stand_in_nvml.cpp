// In the place of libnvidia-ml.so.1, which UCX's CUDA module asks for NVLinks: it has nothing to tell.
extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int) { return "there is no NVML"; }
extern "C" __attribute__((visibility("default"))) int nvmlInit_v2() { return 1; }
