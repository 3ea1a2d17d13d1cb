// nccl_loader VERSION LIBRARY...: loads libraries as a Python interpreter loads its modules, and uses NCCL through the last one, which has
// to be of that version.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char** words) {
  void* handle = nullptr;
  for (int i = 2; i < count; ++i) {
    handle = ::dlopen(words[i], RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "nccl_loader: %s\n", ::dlerror());
      return 2;
    }
  }
  if (handle == nullptr) return 2;
  const int version = reinterpret_cast<int (*)()>(::dlsym(handle, "use_nccl"))();
  if (version == std::atoi(words[1])) return 0;
  std::fprintf(stderr, "nccl_loader: version %d; expected %s\n", version, words[1]);
  return 1;
}
