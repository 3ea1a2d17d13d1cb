#include "ucx_transport.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "railweave/engine/error.hpp"
#include "ucx_memory.hpp"

namespace railweave::engine {
namespace {

constexpr unsigned kFrameId = 1;
constexpr std::size_t kMostFrames = 8;     // in one message: 704 bytes, which fit into a packet of InfiniBand's smallest MTU in use, 1024
constexpr std::uint32_t kMaxCatchUp = 64;  // endpoints made at once to draw level with a peer
// In front of a worker's address: how peers are to send data.
constexpr std::byte kAnyWay{0}, kRendezvous{1};

class UcxTransport final : public Transport {
 public:
  UcxTransport(std::shared_ptr<const UcxLibrary> library, const std::string& device, const UcxOptions& options)
      : ucx_(std::move(library)), reads_back_(options.reads_back) {
    open_context(device, options);
    open_worker(device);
  }

  ~UcxTransport() override {
    listener_ = nullptr;
    while (!endpoints_.empty()) disconnect(endpoints_.begin()->first);
    for (int turns = 0; !closing_.empty() && turns < 10000; ++turns) {
      ucx_->worker_progress(worker_);
      reap();
    }
    memory_.reset();
    ucx_->worker_destroy(worker_);
    ucx_->cleanup(context_);
  }
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  std::vector<std::byte> address() const override {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    require(ucx_->worker_get_address(worker_, &address, &bytes), "worker address");
    const auto* first = reinterpret_cast<const std::byte*>(address);
    std::vector<std::byte> copy;
    copy.reserve(bytes + 1);
    copy.push_back(memory_ ? kRendezvous : kAnyWay);
    copy.insert(copy.end(), first, first + bytes);
    ucx_->worker_release_address(worker_, address);
    return copy;
  }

  void set_listener(TransportListener* listener) override { listener_ = listener; }
  bool knows(MemoryKind kind) const override { return UcxMemory::known(*ucx_, context_, kind); }
  void use_memory(std::span<std::byte> memory, MemoryKind kind) override {
    memory_.emplace(ucx_, context_, worker_, memory, kind, reads_back_);
  }

  void connect(std::uint32_t peer_nic, std::span<const std::byte> address) override {
    Pairing& pairing = pairings_[peer_nic];
    for (std::uint32_t tries = 0; tries == 0 || (pairing.made < pairing.heard && tries < kMaxCatchUp); ++tries) {
      disconnect(peer_nic);
      make_endpoint(peer_nic, address);
    }
  }

  void disconnect(std::uint32_t peer_nic) override {
    const auto found = endpoints_.find(peer_nic);
    if (found == endpoints_.end()) return;
    if (Send* unsent = std::exchange(found->second->next, nullptr)) give_back(unsent);
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucx_->ep_close_nbx(found->second->handle, &params);
    // The error handler may still be called with this argument until the close is complete.
    closing_.push_back({UCS_PTR_IS_PTR(request) ? request : nullptr, std::move(found->second)});
    closing_.back().endpoint->closed = true;
    endpoints_.erase(found);
  }

  void send(std::uint32_t peer_nic, const RailHeader& header, std::span<const std::byte> payload, std::uint64_t token) override {
    const auto found = endpoints_.find(peer_nic);
    if (found == endpoints_.end() || found->second->failed) {
      if (token != 0) listener_->on_sent(token);
      return;
    }
    Endpoint& endpoint = *found->second;
    if (endpoint.next == nullptr) endpoint.next = take_send();
    Send& send = *endpoint.next;
    send.frames[send.count] = header;
    send.frames[send.count++].endpoint = endpoint.number;
    send.token = token;
    if (!payload.empty() || token != 0 || send.count == kMostFrames)
      post(endpoint, payload);
    else if (send.count == 1)
      held_.push_back(peer_nic);
  }

  void flush() override {
    for (const std::uint32_t peer : held_) {
      const auto found = endpoints_.find(peer);
      if (found != endpoints_.end() && found->second->next != nullptr) post(*found->second, {});
    }
    held_.clear();
  }

  bool progress() override {
    const bool moved = ucx_->worker_progress(worker_) != 0;
    if (is_reading()) memory_->progress();
    if (!closing_.empty()) reap();
    if (!arrived_.empty() && !is_reading()) {
      read_back();
      return true;
    }
    // Reported here, not from the error handler: the listener may close endpoints, which UCX's callbacks may not.
    if (!lost_.empty()) {
      const std::vector<std::uint32_t> lost = std::move(lost_);
      lost_.clear();
      for (const std::uint32_t peer : lost) listener_->on_peer_lost(peer);
      return true;
    }
    return moved;
  }

  bool reconnects() const override { return ucx_->survives_failed_connects(); }
  int event_fd() const override { return event_fd_; }
  bool arm() override { return !is_reading() && ucx_->worker_arm(worker_) == UCS_OK; }

 private:
  // Frames that go out as one message; a payload belongs to the last one.
  struct Send {
    UcxTransport* owner = nullptr;
    std::array<RailHeader, kMostFrames> frames;
    std::size_t count = 0;
    std::uint64_t token = 0;
  };
  struct Endpoint {
    UcxTransport* owner = nullptr;
    std::uint32_t peer = 0;
    std::uint32_t number = 0;
    ucp_ep_h handle = nullptr;
    bool rendezvous = false;  // what the peer wants for data, as it may go to memory of use_memory()
    Send* next = nullptr;     // frames that have not gone out
    bool failed = false;
    bool closed = false;
  };
  // UCX makes a pair of the n-th endpoint from a worker to another and the n-th one back. When one of the two is closed, the other still
  // delivers what fits into one fragment, and loses larger frames without a word (until UCX's keepalive notices, 20 s later): the peer
  // looks their endpoint up to put the fragments together. So frames carry their endpoint's number, and who sees that the peer has a
  // newer one than itself makes as many.
  struct Pairing {
    std::uint32_t made = 0;   // endpoints to that peer, ever
    std::uint32_t heard = 0;  // newest that the peer has used
  };
  struct Closing {
    void* request = nullptr;
    std::unique_ptr<Endpoint> endpoint;
  };
  struct Receive {
    UcxTransport* owner = nullptr;
    RailHeader header;
    std::byte* where = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<std::byte[]> own = nullptr;  // `where`, of a `carry`
  };

  void require(ucs_status_t status, const std::string& what) const {
    if (status != UCS_OK) throw TransportError("UCX " + ucx_->version() + ": " + what + ": " + ucx_->describe(status));
  }

  void open_context(const std::string& device, const UcxOptions& options) {
    const bool rdma = is_rdma(device);
    const std::string tls =
        !options.tls.empty() ? options.tls : std::string(rdma ? "rc,dc,ud" : "tcp") + (options.cuda ? ",cuda_copy" : "");
    ucp_config_t* config = nullptr;
    require(ucx_->config_read(nullptr, nullptr, &config), "configuration");
    const auto set = [&](const char* name, const std::string& value) { return ucx_->config_modify(config, name, value.c_str()); };
    ucs_status_t status = set("NET_DEVICES", device);
    if (status == UCS_OK) status = set("TLS", tls);
    // Over TCP a rendezvous only adds round trips, and its half-done receives outlive a dead link; slots are offered by our own protocol.
    if (status == UCS_OK && !rdma) status = set("RNDV_THRESH", "inf");
    // The receiver's NIC reads the one memory and writes the other. Other schemes may go through host memory, by calls of CUDA.
    if (status == UCS_OK && rdma && options.cuda) status = set("RNDV_SCHEME", "get_zcopy");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    if (options.reads_back) params.features |= UCP_FEATURE_RMA;
    params.name = "railweave";
    if (status == UCS_OK) status = ucx_->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    ucx_->config_release(config);
    require(status, "context on device '" + device +
                        "' (does the interface exist in this network namespace, is it up, and is /sys that namespace's own?)");
  }

  void open_worker(const std::string& device) {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucs_status_t status = ucx_->worker_create(context_, &params, &worker_);
    if (status == UCS_OK) {
      ucp_am_handler_param_t handler{};
      handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
      handler.id = kFrameId;
      handler.cb = &UcxTransport::on_frame;
      handler.arg = this;
      status = ucx_->worker_set_am_recv_handler(worker_, &handler);
      if (status == UCS_OK) status = ucx_->worker_get_efd(worker_, &event_fd_);
      if (status != UCS_OK) ucx_->worker_destroy(worker_);
    }
    if (status != UCS_OK) ucx_->cleanup(context_);
    require(status, "worker on device '" + device + "'");
  }

  void make_endpoint(std::uint32_t peer_nic, std::span<const std::byte> address) {
    if (address.empty() || (address.front() != kAnyWay && address.front() != kRendezvous)) return;  // a NIC that is reached by sockets
    auto link = std::make_unique<Endpoint>();
    link->owner = this;
    link->peer = peer_nic;
    link->number = ++pairings_[peer_nic].made;  // UCX counts it, too, when it fails
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    link->rendezvous = address.front() == kRendezvous;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data() + 1);
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = &UcxTransport::on_error;
    params.err_handler.arg = link.get();
    if (ucx_->ep_create(worker_, &params, &link->handle) != UCS_OK) return;  // stays down; the proxy tries again
    endpoints_.emplace(peer_nic, std::move(link));
  }

  // The peer has closed the other end of ours.
  void notice_endpoint(const RailHeader& frame) {
    const auto pairing = pairings_.find(frame.from_nic);
    if (pairing == pairings_.end() || frame.endpoint <= pairing->second.heard) return;
    pairing->second.heard = frame.endpoint;
    const auto found = endpoints_.find(frame.from_nic);
    if (frame.endpoint > pairing->second.made && found != endpoints_.end()) lose(*found->second);
  }

  static void lose(Endpoint& endpoint) {
    if (endpoint.closed || endpoint.failed) return;
    endpoint.failed = true;
    endpoint.owner->lost_.push_back(endpoint.peer);
  }

  void reap() {
    std::erase_if(closing_, [this](const Closing& closing) {
      if (closing.request == nullptr) return true;
      if (ucx_->request_check_status(closing.request) == UCS_INPROGRESS) return false;
      ucx_->request_free(closing.request);
      return true;
    });
  }

  Send* take_send() {
    if (free_sends_.empty()) {
      sends_.push_back(std::make_unique<Send>());
      sends_.back()->owner = this;
      free_sends_.push_back(sends_.back().get());
    }
    Send* send = free_sends_.back();
    free_sends_.pop_back();
    return send;
  }

  void give_back(Send* send) {
    send->count = 0;
    free_sends_.push_back(send);
  }

  void post(Endpoint& endpoint, std::span<const std::byte> payload) {
    Send* send = std::exchange(endpoint.next, nullptr);
    if (endpoint.failed) return finish(send);
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.send = &UcxTransport::on_send_done;
    params.user_data = send;
    describe(params, payload.data());
    if (send->frames[send->count - 1].kind == RailFrame::data && (endpoint.rendezvous || is_elsewhere(payload.data()))) {
      params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_AM_SEND_FLAG_RNDV;
    }
    const ucs_status_ptr_t request = ucx_->am_send_nbx(endpoint.handle, kFrameId, send->frames.data(), send->count * sizeof(RailHeader),
                                                       payload.empty() ? nullptr : payload.data(), payload.size(), &params);
    if (!UCS_PTR_IS_PTR(request)) finish(send);  // done at once, or refused
  }

  void finish(Send* send) {
    const std::uint64_t token = send->token;
    give_back(send);
    if (token != 0 && listener_ != nullptr) listener_->on_sent(token);
  }

  static void on_send_done(void* request, ucs_status_t, void* user_data) {
    auto* send = static_cast<Send*>(user_data);
    send->owner->ucx_->request_free(request);
    send->owner->finish(send);
  }

  static void on_error(void* argument, ucp_ep_h, ucs_status_t) { lose(*static_cast<Endpoint*>(argument)); }

  static ucs_status_t on_frame(void* argument, const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                               const ucp_am_recv_param_t* param) {
    auto* self = static_cast<UcxTransport*>(argument);
    if (header_bytes == 0 || header_bytes % sizeof(RailHeader) != 0) return UCS_OK;
    RailHeader frame;
    for (std::size_t at = 0; self->listener_ != nullptr; at += sizeof frame) {
      std::memcpy(&frame, static_cast<const std::byte*>(header) + at, sizeof frame);
      self->notice_endpoint(frame);
      if (at + sizeof frame == header_bytes) return self->take(frame, data, bytes, param);
      self->listener_->on_delivered(frame, nullptr, 0, true);
    }
    return UCS_OK;
  }

  ucs_status_t take(const RailHeader& frame, void* data, std::size_t bytes, const ucp_am_recv_param_t* param) {
    const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (frame.kind == RailFrame::carry && bytes != 0) {
      if (bytes > kMaxCarryBytes) return UCS_OK;
      if (rendezvous) return receive(frame, nullptr, data, bytes);
      listener_->on_carried(frame, {static_cast<const std::byte*>(data), bytes});
      return UCS_OK;
    }
    std::byte* where = bytes == 0 ? nullptr : listener_->on_incoming(frame, bytes);
    if (bytes != 0 && where == nullptr) return UCS_OK;
    if (rendezvous) return receive(frame, where, data, bytes);
    // A sender that was told to use rendezvous has not.
    const bool reached = bytes == 0 || !is_elsewhere(where);
    if (bytes != 0 && reached) std::memcpy(where, data, bytes);
    listener_->on_delivered(frame, where, bytes, reached);
    return UCS_OK;
  }

  // Large payload over RDMA: UCX writes it into `where` by itself; without one, into memory of its own.
  ucs_status_t receive(const RailHeader& frame, std::byte* where, void* descriptor, std::size_t bytes) {
    auto receive = std::make_unique<Receive>(Receive{this, frame, where, bytes});
    if (where == nullptr) {
      receive->own = std::make_shared_for_overwrite<std::byte[]>(bytes);
      receive->where = where = receive->own.get();
    }
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv_am = &UcxTransport::on_received;
    params.user_data = receive.get();
    describe(params, where);
    const ucs_status_ptr_t request = ucx_->am_recv_data_nbx(worker_, descriptor, where, bytes, &params);
    if (UCS_PTR_IS_PTR(request)) {
      static_cast<void>(receive.release());  // on_received takes it back
      return UCS_INPROGRESS;
    }
    deliver(*receive, !UCS_PTR_IS_ERR(request));
    return UCS_INPROGRESS;
  }

  static void on_received(void* request, ucs_status_t status, std::size_t, void* user_data) {
    const std::unique_ptr<Receive> receive(static_cast<Receive*>(user_data));
    UcxTransport* self = receive->owner;
    self->ucx_->request_free(request);
    if (status == UCS_OK && self->reads_back_ && self->is_elsewhere(receive->where))
      self->arrived_.push_back(*receive);
    else
      self->deliver(*receive, status == UCS_OK);
  }

  void deliver(const Receive& receive, bool ok) const {
    if (listener_ == nullptr) return;
    if (receive.own == nullptr)
      listener_->on_delivered(receive.header, receive.where, receive.bytes, ok);
    else if (ok)
      listener_->on_carried(receive.header, {receive.where, receive.bytes});
  }

  // One reading is behind the writes of all that arrived before it.
  void read_back() {
    const std::byte* last = arrived_.back().where;
    memory_->read_back(last, [this, arrived = std::exchange(arrived_, {})](bool ok) {
      for (const Receive& receive : arrived) deliver(receive, ok);
    });
  }

  bool is_reading() const { return memory_ && memory_->reading(); }
  bool is_elsewhere(const std::byte* payload) const { return memory_ && memory_->holds(payload); }
  // So that UCX need not find out what memory it is.
  void describe(ucp_request_param_t& params, const std::byte* payload) const {
    if (is_elsewhere(payload)) {
      memory_->describe(params);
    } else {
      params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
      params.memory_type = UCS_MEMORY_TYPE_HOST;
    }
  }

  std::shared_ptr<const UcxLibrary> ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  TransportListener* listener_ = nullptr;
  std::unordered_map<std::uint32_t, std::unique_ptr<Endpoint>> endpoints_;
  std::unordered_map<std::uint32_t, Pairing> pairings_;
  std::vector<Closing> closing_;
  std::vector<std::unique_ptr<Send>> sends_;
  std::vector<Send*> free_sends_;
  std::vector<std::uint32_t> held_;  // peers for which frames may wait
  std::vector<std::uint32_t> lost_;
  const bool reads_back_;
  std::optional<UcxMemory> memory_;
  std::vector<Receive> arrived_;  // there, and not read back
};

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(std::shared_ptr<const UcxLibrary> library, const std::string& device,
                                              const UcxOptions& options) {
  return std::make_unique<UcxTransport>(std::move(library), device, options);
}

}  // namespace railweave::engine
