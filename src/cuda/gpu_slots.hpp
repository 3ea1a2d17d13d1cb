// Slots of NICs in GPU memory: this rank's, and its mates' as its kernels reach them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../engine/slot_memory.hpp"
#include "extent_book.hpp"
#include "gpu_direct.hpp"
#include "lent_memory.hpp"

namespace railweave::cuda {

class GpuSlots final : public engine::SlotMemory {
 public:
  // On the current device. Throws DeviceError.
  GpuSlots(std::uint64_t setting, Remarks& remarks);

  engine::MemoryKind kind() const override { return engine::MemoryKind::cuda; }
  std::string objection(const std::string& device) const override { return direct_objection(setting_, facts_, device); }
  std::span<std::byte> make(std::uint64_t bytes) override;
  void drop() override { own_ = {}; }
  std::vector<std::byte> handle() const override;
  std::byte* map(std::uint32_t rank, const engine::RankInfo& mate) override;
  void say(const std::string& text) override { remarks_.once(text); }
  void warn(const std::string& text) override { remarks_.warn_once(text); }
  void enter() const override;

 private:
  const std::uint64_t setting_;
  Remarks& remarks_;
  int device_ = 0;
  GpuFacts facts_;
  LentMemory own_;
  std::map<std::uint32_t, std::shared_ptr<void>> mates_;  // by rank
};

}  // namespace railweave::cuda
