// The host backend: this process's memory is the ranks' memory, the engine thread copies.
#include <cstring>

#include "copying_backend.hpp"

namespace railweave::engine {
namespace {

class HostCopier : public Copier {
 public:
  bool has_room() const override { return true; }
  bool push(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t) override {
    std::memcpy(to, from, bytes);
    return true;
  }
  bool pull(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t) override {
    std::memcpy(to, from, bytes);
    return true;
  }
  bool put(std::byte* to, std::span<const std::byte> data, std::uint64_t) override {
    if (!data.empty()) std::memcpy(to, data.data(), data.size());
    return true;
  }
  void take_ended(std::vector<Ended>&) override {}
};

class HostBackend final : HostCopier, public CopyingBackend {
 public:
  explicit HostBackend(EngineServices& services) : CopyingBackend(services, static_cast<Copier&>(*this)) {}
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(EngineServices& services) { return std::make_unique<HostBackend>(services); }

}  // namespace railweave::engine
