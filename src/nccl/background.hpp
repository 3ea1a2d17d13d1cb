// Threads of the shim's own that nobody joins, and the end of the process that waits for them.
#pragma once

#include <functional>
#include <thread>

namespace railweave::nccl {

// A thread that takes no signals: the program's handlers belong on its own threads. Throws std::system_error where there is none to have.
std::thread signal_free_thread(std::function<void()> body);

// Runs the task, which throws nothing, on a thread; the process does not end before it has (for at most a bounded time, see
// background.cpp). Where no thread is to be had the task, which waits for others only so long, runs before this returns.
void in_background(std::function<void()> task);

}  // namespace railweave::nccl
