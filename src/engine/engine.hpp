// A rank's engine: its thread, what it owns, and how operations pass through (docs/protocol.md).
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend.hpp"
#include "cluster.hpp"
#include "control.hpp"
#include "node_memory.hpp"
#include "operation.hpp"
#include "rail_proxy.hpp"
#include "router.hpp"
#include "row_history.hpp"
#include "slot_memory.hpp"
#include "standing.hpp"

namespace railweave::engine {

// Wraps the transport of each NIC, by its position among this rank's; tests inject faults with it.
using TransportWrapper = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>, std::uint32_t own_nic)>;

// What a NIC of this node has to those of other nodes.
struct NicLinks {
  std::uint32_t nic = 0;
  std::uint32_t links = 0;
  std::vector<std::string> down;  // of those: what is at the other end, and why it is for ever where that is known
};

class Engine final : public EngineServices {
 public:
  Engine(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous, const ExchangeSettings& settings,
         std::optional<Fabric> fabric, const TransportWrapper& wrap = {}, Interruption interruption = {});
  // Where the ranks have met already and know each other: these are the last rounds of that rendezvous. `slots`: where slots of NICs may
  // lie beside the ranks' regions, for as long as the engine lives; all ranks have one, or none.
  Engine(Cluster cluster, Rendezvous& rendezvous, const ExchangeSettings& settings, std::optional<Fabric> fabric,
         const TransportWrapper& wrap, const BackendMaker& make_backend, SlotMemory* slots = nullptr);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- program threads
  // Numbers the operation's messages in program order and hands it to the engine thread. Throws ExchangeError when closed.
  void post(const std::shared_ptr<Operation>& operation) override;
  std::shared_ptr<SharedMemory> allocate(std::uint64_t bytes);
  std::vector<std::string> links_down() const;
  // In the node's order. Where it closes links are down.
  std::vector<NicLinks> nic_links() const;
  bool is_closing() const { return close_requested_.load(); }
  // Asks the engine's thread; nothing where it does not answer in time.
  std::optional<Standing> standing(std::chrono::milliseconds limit);
  // Has the engine thread look at everything, if it sleeps.
  void wake() const { memory_->wake(memory_->self()); }
  // A forked child has the engine's memory, but not its thread, and its sockets are the parent's, too: there nothing may be posted, waited
  // for, closed or taken apart.
  bool is_of_this_process() const { return cluster_.self().pid == ::getpid(); }
  // close() in two steps: the first does not wait. `at_once`: what others would have it relay is not waited for.
  void begin_close(bool at_once = false);
  void close();

  // --- EngineServices
  const Cluster& cluster() const override { return cluster_; }
  NodeMemory& memory() override { return *memory_; }
  ControlChannel& control() override { return *control_; }
  const Router& router() const override { return *router_; }
  bool relays(std::uint32_t rank) const override;
  bool serves(std::uint32_t rank) const override;
  std::uint64_t link_word(std::uint32_t nic, std::uint32_t peer) const override;
  std::shared_ptr<void> registered(const std::byte* data, std::uint64_t bytes, MemoryHandle& handle, std::uint64_t& offset) override;
  std::shared_ptr<SharedMemory> map(const MemoryHandle& handle) override;
  MessageState state_of(const MessageKey& key) const override { return state_of(key, sends(key)); }
  std::uint64_t eager_bytes() const override { return settings_.eager_bytes; }
  std::uint32_t link_window(std::uint32_t nic) const override;
  void message_over(Operation& operation) override;
  void fail(Operation& operation, const Failure& failure) override;
  std::optional<Failure> death() const override;

 private:
  enum class RankState : std::uint8_t { alive, leaving, dead };
  static constexpr std::uint32_t kEndedWell = 1, kHadLeft = 2;  // what `dead` frames say beside the rank
  struct Member {
    RankState state = RankState::alive;
    bool left = false;          // it said goodbye, or nothing of it gets here any more; it may be dead by now
    bool left_first = false;    // before this rank did: it needs nothing from us, and may be gone
    bool leased = true;         // mates: shows life
    Fd pidfd;                   // mates in other processes
    bool ended_well = false;    // dead: it had ended all its operations, and well
    std::uint64_t dies_at = 0;  // ranks of other nodes: held for dead from then on
    std::string told;           // how it died, by those who saw it
    std::string epitaph;        // why it is not alive
  };
  using OperationPtr = std::shared_ptr<Operation>;

  // engine_setup.cpp
  Engine(std::uint32_t rank, std::uint32_t world, Rendezvous& rendezvous, const ExchangeSettings& settings, std::optional<Fabric> fabric,
         const TransportWrapper& wrap);
  void set_up(Rendezvous& rendezvous, std::optional<Fabric> fabric, const TransportWrapper& wrap, const BackendMaker& make_backend);
  // A NIC's transport, and why its slots lie in the region.
  struct OpenNic {
    std::unique_ptr<Transport> transport;
    std::string objection;
  };
  std::vector<OpenNic> open_nics(const TransportWrapper& wrap) const;
  bool goes_by_sockets(const std::string& device) const;
  OpenNic open_nic(std::uint32_t nic, const TransportWrapper& wrap) const;
  std::string offer_slots(const std::string& device, Transport& transport) const;
  Resources resources(const std::vector<OpenNic>& nics) const;
  void move_nic_slots();
  std::string common_objection() const;
  void settle_nic_slots(const std::vector<std::string>& objections);
  void tell_apart() const;
  void start_thread(std::future<bool> runs);
  void watch_mates();
  void bring_links_up(Rendezvous& rendezvous);

  // engine.cpp
  std::string name_of(std::uint32_t nic) const;
  std::string apart(std::uint32_t nic, std::uint32_t peer) const;
  void run(std::future<bool> runs);
  void serve();
  void break_down(const char* why) noexcept;
  bool turn(std::uint64_t now);
  bool sleep();
  void put_links_down();
  std::uint64_t next_deadline() const;
  bool read_rings();
  bool drain_ring(std::uint32_t mate, std::size_t most);
  void take_announced();
  bool read_mail(std::uint64_t now);
  bool drain_mail(std::uint32_t mate, std::uint64_t now);
  void on_frame(std::uint32_t source, FrameType type, ByteReader& payload);
  void notice_links(std::uint64_t now);
  void answer_asked();
  Standing stand() const;
  void settle(std::uint64_t now);

  // engine_operations.cpp
  void take_posted(std::uint64_t now);
  void start(const OperationPtr& operation, std::uint64_t now);
  void start_sends(Operation& operation, std::uint64_t now);
  void plan_again(Operation& operation, std::uint64_t now);
  void plan(Operation& operation, std::uint64_t now);
  std::uint64_t row_wait_ns(std::uint64_t bytes) const;
  void advance_rows(std::uint64_t now);
  bool trades(const Operation& operation, std::uint32_t rank) const;
  std::uint32_t rows_missing(const Operation& operation) const;
  enum class Reach : std::uint8_t { nobody, mates, nodes };
  std::uint64_t lifetime_ns(std::uint32_t rank, std::span<const std::uint64_t> row) const;
  std::vector<std::uint64_t> row_of(const Operation& operation) const;
  void publish_row(const Operation& operation, Reach reach);
  void on_row(std::uint32_t source, ByteReader& payload);
  std::optional<Failure> refusal(const Operation& operation) const;
  void begin_failing(Operation& operation, std::uint64_t now);
  bool sends(const MessageKey& key) const { return key.source == cluster_.rank; }
  Operation* unfinished_with(const MessageKey& key, bool sends) const;
  MessageState state_of(const MessageKey& key, bool sends) const;
  bool tell_itself(const Operation& operation, const MessageKey& key, bool sends, std::uint64_t now);
  void on_cancel(std::uint32_t source, ByteReader& payload);
  void on_cancelled(std::uint32_t source, ByteReader& payload);
  void end(const OperationPtr& operation);
  void end_for_program(Operation& operation);
  bool involves(const Operation& operation, std::uint32_t rank, bool unfinished_only) const;
  bool needs(const Operation& operation, std::uint32_t rank) const;

  // engine_members.cpp
  void tick(std::uint64_t now);
  void check_leases(std::uint64_t now);
  void check_nodes(std::uint64_t now);
  bool cut_off(std::uint32_t node) const;
  void lose(std::uint32_t node);
  void check_pids();
  void check_deaths(std::uint64_t now);
  void on_death_told(std::uint32_t rank, std::uint32_t traits, const std::string& how);
  void take_leave(std::uint32_t rank);
  void on_dead(std::uint32_t rank, const std::string& how);
  void on_leaving(std::uint32_t rank);
  void tell_deaths();
  void fail_operations_with(std::uint32_t rank, FailureKind kind, bool collectives);
  bool is_needed(std::uint64_t now) const;
  bool may_exit(std::uint64_t now);
  void advance_closing(std::uint64_t now);

  ExchangeSettings settings_;
  SlotMemory* slots_ = nullptr;
  Cluster cluster_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<NodeMemory> memory_;
  std::unique_ptr<RailProxy> proxy_;
  std::unique_ptr<ControlChannel> control_;
  std::unique_ptr<Backend> backend_;

  std::mutex close_mutex_;

  // Shared with program threads.
  mutable std::mutex mutex_;
  std::vector<OperationPtr> posted_;
  bool closed_ = false;
  std::string why_closed_ = "the exchange is closed";
  std::uint64_t serial_ = 0;
  struct Numbers {
    std::uint64_t collectives = 0;
    std::vector<std::uint64_t> sends, recvs;  // by peer
  };
  std::map<std::uint32_t, Numbers> numbers_;  // by communicator
  std::vector<std::weak_ptr<SharedMemory>> allocations_;
  std::atomic<bool> close_requested_{false}, leaves_at_once_{false};
  std::atomic<bool> links_settled_{false};
  std::vector<std::promise<Standing>> asked_;
  std::atomic<bool> is_asked_{false};

  // Engine thread.
  std::thread thread_;
  std::vector<Member> members_;
  std::vector<OperationPtr> taking_;  // posted, and not among the next yet
  std::vector<OperationPtr> operations_;
  std::map<std::uint32_t, RowHistory> histories_;  // by communicator
  std::vector<std::uint64_t> silent_ns_, heard_;   // by node
  // Receives and sends that have failed before the program has posted them.
  std::array<std::unordered_map<MessageKey, Failure, MessageKeyHash>, 2> cancelled_early_;
  std::vector<std::pair<std::uint64_t, std::shared_ptr<SharedMemory>>> mapped_;  // by inode, oldest first
  std::uint64_t seen_link_changes_ = 0;
  std::uint64_t last_turn_ = 0, next_tick_ = 0, last_tick_ = 0;
  std::uint64_t taken_ = 0;  // operations
  std::uint64_t closing_since_ = 0, leaving_since_ = 0, may_exit_since_ = 0;
  std::uint64_t carried_at_ = 0;              // while it closes: when its NICs last had anything under way
  std::vector<std::uint64_t> posted_before_;  // by mate: operations when it began to close
  bool stopped_ = false;
};

}  // namespace railweave::engine
