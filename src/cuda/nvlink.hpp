// How GPUs are linked that this process does not see.
#pragma once

#include <optional>
#include <string>

namespace railweave::cuda {

// Whether NVLink joins the GPUs with these PCI addresses ("0000:1b:00.0"), as the driver's management library says, which knows all GPUs of
// the machine whatever CUDA_VISIBLE_DEVICES names. None: it cannot be asked (a container may lack it), or does not know one of them.
// `library`: its name.
std::optional<bool> joined_by_nvlink(const std::string& gpu, const std::string& other, const char* library = "libnvidia-ml.so.1");

}  // namespace railweave::cuda
