// In the place of libnvidia-ml.so.1. UCX's CUDA module, which asks for NVLinks, hears that it has nothing to tell. With STAND_IN_NVLINKS
// there are four GPUs, 0000:00:00.0 to 0000:03:00.0, and NVLink joins those whose numbers follow one another there ("01 23").
#include <cstdlib>
#include <cstring>
#include <string>

#define STAND_IN extern "C" __attribute__((visibility("default")))

namespace {

int users = 0;
char gpus[4];

}  // namespace

STAND_IN const char* nvmlErrorString(int) { return "there is no NVML"; }

STAND_IN int nvmlInit_v2() {
  if (std::getenv("STAND_IN_NVLINKS") == nullptr) return 1;
  ++users;
  return 0;
}

STAND_IN int nvmlShutdown() { return users-- > 0 ? 0 : 1; }

STAND_IN int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  const bool known = users > 0 && std::strlen(bus) == 12 && std::strncmp(bus, "0000:0", 6) == 0 && bus[6] >= '0' && bus[6] <= '3';
  if (!known) return 6;  // NVML_ERROR_NOT_FOUND
  *device = gpus + (bus[6] - '0');
  return 0;
}

STAND_IN int nvmlDeviceGetP2PStatus(void* a, void* b, int index, int* status) {
  if (users <= 0) return 1;
  const auto number = [](void* device) { return static_cast<char>('0' + (static_cast<char*>(device) - gpus)); };
  const std::string links = std::getenv("STAND_IN_NVLINKS");
  const bool joined = links.find(std::string{number(a), number(b)}) != std::string::npos ||
                      links.find(std::string{number(b), number(a)}) != std::string::npos;
  *status = index == 2 && joined ? 0 : 5;  // NVML_P2P_STATUS_NOT_SUPPORTED
  return 0;
}
