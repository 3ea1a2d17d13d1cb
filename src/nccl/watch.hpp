// Looks at communicators from time to time: says what operations that stand still wait for, and keeps the metrics.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace railweave::nccl {

class Communicator;

// Decides when a communicator has stalled: something is under way and nothing has moved for the limit. Says so once for each stall.
class StallDetector {
 public:
  using Clock = std::chrono::steady_clock;
  explicit StallDetector(std::chrono::milliseconds limit) : limit_(limit) {}
  // `progress` grows whenever anything moves.
  bool stalled(std::uint64_t progress, bool under_way, Clock::time_point now);

 private:
  std::chrono::milliseconds limit_;
  std::optional<std::uint64_t> last_;
  Clock::time_point since_;
  bool told_ = false;
};

// Watches the communicator until it is gone; one thread for the process, none when neither stalls nor metrics are asked for.
void watch(std::weak_ptr<Communicator> communicator);

}  // namespace railweave::nccl
