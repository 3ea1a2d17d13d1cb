// The NCCL behind the shim.
#pragma once

#include "nccl_abi.hpp"

namespace railweave::nccl {

// The address of a function of the real NCCL, or nullptr when that version (or the machine) has none; then the reason is the last error.
void* real_symbol(const char* name);

// Where the real NCCL was found, or why not.
const char* real_origin();

// What a call of a function gives that the real NCCL lacks.
ncclResult_t missing(const char* name);

// Calls into the real NCCL on this thread: what it calls back through the public names is its own business and passes through.
class InsideReal {
 public:
  InsideReal() { ++depth_; }
  ~InsideReal() { --depth_; }
  InsideReal(const InsideReal&) = delete;
  InsideReal& operator=(const InsideReal&) = delete;
  static bool now() { return depth_ != 0; }

 private:
  static thread_local int depth_;
};

// The last error of the shim's own, for ncclGetLastError; empty when NCCL's is later.
void set_last_error(const char* text);
const char* last_error();
void clear_last_error();

// A function of the real NCCL by its signature: Real<ncclResult_t(int*)> get{"ncclGetVersion"}; get(&version).
template <typename Signature>
class Real;

template <typename... Arguments>
class Real<ncclResult_t(Arguments...)> {
 public:
  explicit Real(const char* name) : name_(name), function_(reinterpret_cast<ncclResult_t (*)(Arguments...)>(real_symbol(name))) {}
  ncclResult_t operator()(Arguments... arguments) const {
    if (function_ == nullptr) return missing(name_);
    const InsideReal inside;
    const ncclResult_t result = function_(arguments...);
    if (result != ncclSuccess && result != ncclInProgress) clear_last_error();  // NCCL has a later one
    return result;
  }
  explicit operator bool() const { return function_ != nullptr; }

 private:
  const char* name_;
  ncclResult_t (*function_)(Arguments...);
};

}  // namespace railweave::nccl
