// The host backend: this process's memory is the ranks' memory, the engine thread copies.
#include "backend.hpp"
#include "host_destination.hpp"
#include "host_source.hpp"

namespace railweave::engine {
namespace {

class HostBackend final : public Backend {
 public:
  explicit HostBackend(EngineServices& services)
      : source_(services), destination_(services, [this](const Grant& grant, std::byte* buffer) { source_.on_grant(grant, buffer); }) {}

  void receive(Operation& operation) override { destination_.receive(operation); }
  void send(Operation& operation) override { source_.send(operation); }
  void on_record(const Record& record) override { destination_.on_record(record); }
  void on_grant(const Grant& grant) override { source_.on_grant(grant, nullptr); }
  void on_ack(const Ack& ack) override { source_.on_ack(ack); }
  bool advance() override { return source_.advance(); }
  void retire_attempts() override { source_.retire_attempts(); }
  void drop(Operation& operation) override {
    source_.drop(operation);
    destination_.drop(operation);
  }

 private:
  HostSource source_;
  HostDestination destination_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(EngineServices& services) { return std::make_unique<HostBackend>(services); }

}  // namespace railweave::engine
