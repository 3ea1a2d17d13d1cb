// Threads of the shim's own that nobody joins, and the end of the process that waits for them.
#pragma once

#include <functional>

namespace railweave::nccl {

// Runs the task on a thread; the process does not end before it has (for at most a bounded time, see background.cpp).
void in_background(std::function<void()> task);

}  // namespace railweave::nccl
