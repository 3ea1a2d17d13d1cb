// Memory of communicators that were destroyed while operations of others were under way: giving it back waits for every kernel of the
// device, and such a kernel for ranks whose programs may wait for this one.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace railweave::cuda {

// Calls may run beside each other. What is left when the process ends is the driver's to free.
class Deferred {
 public:
  void add(int device, std::shared_ptr<void> memory);
  // Gives back what there is of the device, the oldest first. `alone` runs a call while no operation is under way on it, or returns false;
  // it is asked for each anew, so that an operation waits for one of them at most.
  void give_back(int device, const std::function<bool(const std::function<void()>& call)>& alone);

  bool has(int device);

 private:
  std::shared_ptr<void> take(int device);

  std::mutex mutex_;
  std::vector<std::pair<int, std::shared_ptr<void>>> memory_;
};

}  // namespace railweave::cuda
