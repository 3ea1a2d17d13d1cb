#include "rail_proxy.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

namespace railweave::engine {
namespace {

constexpr std::uint64_t kHeardEveryNs = 20'000'000;   // boards need not know of every frame
constexpr std::uint64_t kPingSpacingNs = 10'000'000;  // per link of a NIC with many links
constexpr std::uint32_t kAheadPart = 2;               // of a NIC's rx slots one in so many may be accepted ahead, divided among its links
constexpr std::uint64_t kRxSilence = 2;               // rail time-outs: a sender that is only starved of a CPU gets to speak first
constexpr unsigned kProgressTurns = 16;               // times events are taken before the engine looks at its rings again
// Goes alone, from where it lies. A message of its own costs both ends' threads some 2 us each, as much as copying 30 KiB
// (benchmarks/engine: two frames of 16 KiB take 16 us of CPU together and 20 to 23 apart, two of 64 KiB 50 when they are copied and 42
// else).
constexpr std::size_t kLargeFrame = 32u << 10;

std::vector<std::uint32_t> peers_of(const Cluster& cluster, std::uint32_t nic,
                                    const std::function<bool(std::uint32_t, std::uint32_t)>& connected) {
  std::vector<std::uint32_t> peers;
  for (std::uint32_t peer = 0; peer < cluster.nics.size(); ++peer) {
    if (cluster.nics[peer].node != cluster.node() && connected(nic, peer)) peers.push_back(peer);
  }
  return peers;
}

// `answer_ns`: what an answer may take where nothing is wrong.
LinkTimes times_of(const ExchangeSettings& settings, std::size_t links, std::uint64_t answer_ns) {
  LinkTimes times;
  times.heartbeat_ns = std::max<std::uint64_t>(settings.heartbeat_ms * 1'000'000, links * kPingSpacingNs);
  times.resend_ns = settings.resend_ms * 1'000'000;
  times.timeout_ns = std::max({settings.rail_timeout_ms * 1'000'000, 3 * times.heartbeat_ns, answer_ns});
  times.reconnect_ns = settings.reconnect_ms * 1'000'000;
  return times;
}

// A NIC's links have a window each under way, and the answer waits behind as much of the other direction; as much again for what waits in
// front of other NICs. With chunks of 128 KiB that is longer than three heartbeats, which have 10 ms a link, only below 210 Mbit/s.
std::uint64_t longest_answer_ns(const ExchangeSettings& settings, std::uint64_t nominal_Bps, std::size_t links) {
  const double bytes = 3.0 * static_cast<double>(links) * static_cast<double>(settings.chunk_bytes) * link_window(settings, nominal_Bps);
  return nominal_Bps == 0 ? 0 : static_cast<std::uint64_t>(bytes * 1e9 / static_cast<double>(nominal_Bps));
}

}  // namespace

// One NIC with its transport.
class RailProxy::Port final : public TransportListener {
 public:
  Port(RailProxy& proxy, std::unique_ptr<Transport> transport, std::uint32_t window, std::uint32_t own_nic, std::uint32_t nic,
       const std::vector<std::uint32_t>& peers, const LinkTimes& times)
      : proxy_(proxy),
        transport_(std::move(transport)),
        nic_(nic),
        rx_(proxy.cluster_, proxy.memory_, own_nic, nic, kRxSilence * times.timeout_ns,
            static_cast<std::uint32_t>(proxy.memory_.rx_slots() / kAheadPart / std::max<std::size_t>(peers.size(), 1)), own_times) {
    for (const std::uint32_t peer : peers) {
      links_.emplace(peer,
                     std::make_unique<TxLink>(TxLink::Port{*transport_, proxy.memory_, proxy.holds_, tx_bytes_, own_times, proxy.confirm_},
                                              TxLink::Names{own_nic, nic, peer}, times, window));
    }
    transport_->set_listener(this);
  }
  ~Port() override { transport_->set_listener(nullptr); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  Transport& transport() { return *transport_; }
  std::map<std::uint32_t, std::unique_ptr<TxLink>>& links() { return links_; }
  RxPort& rx() { return rx_; }
  std::uint32_t nic() const { return nic_; }
  // That NIC's owner is held for dead: it gets no answer any more, so that it comes to hold this node for dead too.
  void bury(std::uint32_t peer_nic) {
    rx_.bury(peer_nic);
    dead_.insert(peer_nic);
  }

  bool advance(std::uint64_t now) {
    now_ = now;
    bool moved = false;
    for (unsigned turn = 0; turn < kProgressTurns && transport_->progress(); ++turn) moved = true;
    if (rx_.advance(now)) moved = true;
    for (auto& [peer, link] : links_) {
      if (link->advance(now, proxy_.cluster_.nics[peer].address)) moved = true;
    }
    send_answers();  // after the links: one of them may have connected again
    for (auto& [peer, link] : links_) link->send_accepted(now);
    transport_->flush();
    return moved;
  }

  // At the end of the turn.
  void carry(std::uint32_t peer, const Frame& frame) { carrying_[peer].push_back(frame); }
  // Small frames of a turn for one NIC go together: each message of its own would cost both ends a call of the system.
  void send_carried() {
    for (auto& [peer, frames] : carrying_) {
      const TxLink& link = *links_.at(peer);
      // Else they are lost, as what is on a rail may be.
      for (std::span<const Frame> left = frames; link.up() && !left.empty();) {
        std::size_t count = 1, bytes = left.front().carried().size();
        for (const bool small = bytes < kLargeFrame; small && count < left.size(); ++count) {
          const std::size_t next = left[count].carried().size();
          if (next >= kLargeFrame || bytes + next > kMaxCarryBytes) break;
          bytes += next;
        }
        send_together(link, left.first(count), bytes);
        left = left.subspan(count);
      }
      frames.clear();
    }
  }

  std::byte* on_incoming(const RailHeader& header, std::size_t bytes) override {
    if (!known(header) || dead_.contains(header.from_nic)) return nullptr;
    return header.kind == RailFrame::data ? rx_.on_data(header, bytes) : nullptr;
  }

  void on_delivered(const RailHeader& header, std::byte* /*where*/, std::size_t /*bytes*/, bool ok) override {
    if (!known(header)) return;
    if (dead_.contains(header.from_nic)) {  // no answer; only what was begun is ended
      if (header.kind == RailFrame::data) rx_.on_data_done(header, ok);
      return;
    }
    rx_.hear(header.from_nic, now_);
    const auto link = links_.find(header.from_nic);
    switch (header.kind) {
      case RailFrame::hello:
        rx_.on_hello(header);
        link->second->on_hello();
        break;
      case RailFrame::offer: rx_.on_offer(header); break;
      case RailFrame::ping: rx_.on_ping(header); break;
      case RailFrame::data: rx_.on_data_done(header, ok); break;
      case RailFrame::hello_back:
      case RailFrame::accept:
      case RailFrame::got:
      case RailFrame::unwanted:
      case RailFrame::pong: hear(header); [[fallthrough]];
      case RailFrame::over: link->second->on_answer(header, now_); break;
      case RailFrame::carry: break;  // one without frames
    }
  }

  void on_carried(const RailHeader& header, std::span<const std::byte> frames) override {
    if (!known(header) || dead_.contains(header.from_nic)) return;
    rx_.hear(header.from_nic, now_);
    std::uint32_t size = 0;
    while (frames.size() > sizeof size) {
      std::memcpy(&size, frames.data(), sizeof size);
      frames = frames.subspan(sizeof size);
      if (size > frames.size()) return;
      proxy_.on_frame_(frames.first(size));
      frames = frames.subspan(size);
    }
  }

  void on_sent(std::uint64_t token) override {
    if ((token & 1) == 0)
      proxy_.holds_.sent(token);
    else
      proxy_.carried_.erase(token);
  }

  void on_peer_lost(std::uint32_t peer_nic) override {
    if (const auto link = links_.find(peer_nic); link != links_.end()) link->second->on_lost(now_);
    rx_.give_up(peer_nic);
  }

 private:
  // Everything in a header came from another machine.
  bool known(const RailHeader& header) const { return header.to_nic == nic_ && links_.contains(header.from_nic); }

  // An answer is a sign of life; any other frame only says that this way works, not that the sender hears this node.
  void hear(const RailHeader& header) {
    const std::uint32_t node = proxy_.cluster_.nics[header.from_nic].node;
    std::uint64_t& last = heard_[node];
    if (now_ - last < kHeardEveryNs) return;
    last = now_;
    proxy_.memory_.hear(node, now_);
  }

  void send_together(const TxLink& link, std::span<const Frame> frames, std::size_t bytes) {
    RailHeader header = link.header(RailFrame::carry);
    header.length = static_cast<std::uint32_t>(bytes);
    std::shared_ptr<const std::byte[]> memory = frames.front().memory();
    if (frames.size() > 1) {
      const auto together = std::make_shared_for_overwrite<std::byte[]>(bytes);
      std::byte* end = together.get();
      for (const Frame& frame : frames) end = std::copy_n(frame.carried().data(), frame.carried().size(), end);
      memory = together;
    }
    const std::byte* const first = memory.get();
    transport_->send(link.peer(), header, {first, bytes}, proxy_.keep(std::move(memory)));
  }

  void send_answers() {
    std::vector<RailHeader> answers;
    answers.swap(rx_.answers());
    for (const RailHeader& answer : answers) {
      if (!dead_.contains(answer.to_nic)) transport_->send(answer.to_nic, answer, {}, 0);
    }
  }

  RailProxy& proxy_;
  std::unique_ptr<Transport> transport_;
  std::uint32_t nic_;
  std::uint64_t tx_bytes_ = 0;
  std::map<std::uint32_t, std::unique_ptr<TxLink>> links_;
  RxPort rx_;
  std::map<std::uint32_t, std::vector<Frame>> carrying_;  // by peer NIC: control frames of this turn
  std::unordered_map<std::uint32_t, std::uint64_t> heard_;
  std::set<std::uint32_t> dead_;  // peer NICs
  std::uint64_t now_ = 0;
};

RailProxy::RailProxy(const Cluster& cluster, NodeMemory& memory, const ExchangeSettings& settings,
                     std::vector<std::unique_ptr<Transport>> transports, const std::function<bool(std::uint32_t, std::uint32_t)>& connected,
                     const std::function<std::uint64_t(std::uint32_t)>& nominal_Bps, FrameHandler on_frame, RecordHandler on_confirmed)
    : cluster_(cluster), memory_(memory), holds_(memory), on_frame_(std::move(on_frame)), on_confirmed_(std::move(on_confirmed)) {
  for (std::uint32_t own = 0; own < transports.size(); ++own) {
    const std::uint32_t nic = cluster.self().nics[own];
    const std::vector<std::uint32_t> peers = peers_of(cluster, nic, connected);
    ports_.push_back(std::make_unique<Port>(*this, std::move(transports[own]), link_window(settings, nominal_Bps(nic)), own, nic, peers,
                                            times_of(settings, peers.size(), longest_answer_ns(settings, nominal_Bps(nic), peers.size()))));
  }
}

RailProxy::~RailProxy() = default;

bool RailProxy::advance(std::uint64_t now) {
  bool moved = false;
  for (auto& port : ports_) moved = port->advance(now) || moved;
  return moved;
}

void RailProxy::excuse(std::uint64_t ns) {
  for (auto& port : ports_) {
    for (auto& [peer, link] : port->links()) link->excuse(ns);
    port->rx().excuse(ns);
  }
}

std::uint64_t RailProxy::next_deadline() const {
  std::uint64_t deadline = std::numeric_limits<std::uint64_t>::max();
  for (const auto& port : ports_) {
    for (const auto& [peer, link] : port->links()) deadline = std::min(deadline, link->next_deadline());
  }
  return deadline;
}

void RailProxy::forward(const Record& record) {
  if (!memory_.holds(memory_.self(), Pool::tx, record.slot, record.turn)) return;
  const std::uint32_t nics = static_cast<std::uint32_t>(cluster_.nics.size());
  for (auto& port : ports_) {
    if (nics == 0 || port->nic() != record.link / nics) continue;
    const auto link = port->links().find(record.link % nics);
    if (link == port->links().end()) break;
    link->second->forward(record);
    return;
  }
  memory_.release(memory_.self(), Pool::tx, record.slot, record.turn);
}

// Before its tx slot is free, so that a source seldom takes a slot before it knows how far it is.
void RailProxy::confirm(const Record& forwarded) {
  const std::uint32_t source = forwarded.message.source;
  if (source >= cluster_.world || !cluster_.local(source)) return;
  Record record = forwarded;
  record.kind = RecordKind::confirmed;
  if (source == cluster_.rank)
    on_confirmed_(record);
  else
    memory_.announce(cluster_.ranks[source].local, record);
}

bool RailProxy::carry(std::uint32_t destination, const Frame& frame, std::uint32_t attempt) {
  struct Choice {
    Port* port;
    TxLink* link;
  };
  std::vector<Choice> direct, others;
  const std::uint32_t node = cluster_.ranks[destination].node;
  for (auto& port : ports_) {
    for (auto& [peer, link] : port->links()) {
      if (!link->up() || cluster_.nics[peer].node != node) continue;
      (cluster_.nics[peer].owner == destination ? direct : others).push_back({port.get(), link.get()});
    }
  }
  // Frames to one rank stay together; those to others take other NICs, as small messages are frames.
  for (std::vector<Choice>* const choices : {&direct, &others}) {
    if (!choices->empty())
      std::rotate(choices->begin(), choices->begin() + static_cast<std::ptrdiff_t>(destination % choices->size()), choices->end());
  }
  direct.insert(direct.end(), others.begin(), others.end());
  if (direct.empty()) return false;
  const Choice& choice = direct[attempt % direct.size()];
  choice.port->carry(choice.link->peer(), frame);
  return true;
}

void RailProxy::flush() {
  for (auto& port : ports_) port->send_carried();
}

std::uint64_t RailProxy::keep(std::shared_ptr<const std::byte[]> frames) {
  const std::uint64_t token = next_carry_;
  next_carry_ += 2;
  carried_.emplace(token, std::move(frames));
  return token;
}

void RailProxy::abandon(std::uint32_t rank, bool at_once) {
  for (auto& port : ports_) {
    for (const std::uint32_t nic : cluster_.ranks[rank].nics) {
      if (const auto link = port->links().find(nic); link != port->links().end()) link->second->abandon(at_once);
      if (at_once) port->bury(nic);
    }
  }
}

bool RailProxy::all_links_up() const {
  return std::all_of(ports_.begin(), ports_.end(), [](const std::unique_ptr<Port>& port) {
    return std::all_of(port->links().begin(), port->links().end(), [](const auto& link) { return link.second->up(); });
  });
}

bool RailProxy::idle() const {
  const auto quiet = [](const std::unique_ptr<Port>& port) {
    return port->rx().idle() &&
           std::all_of(port->links().begin(), port->links().end(), [](const auto& link) { return link.second->idle(); });
  };
  return holds_.empty() && carried_.empty() && std::all_of(ports_.begin(), ports_.end(), quiet);
}

std::vector<int> RailProxy::event_fds() const {
  std::vector<int> fds;
  for (const auto& port : ports_) fds.push_back(port->transport().event_fd());
  return fds;
}

bool RailProxy::arm() {
  return std::all_of(ports_.begin(), ports_.end(), [](auto& port) { return port->transport().arm(); });
}

std::vector<LinkLoad> RailProxy::loads() const {
  std::vector<LinkLoad> loads;
  for (const auto& port : ports_) {
    for (const auto& [peer, link] : port->links()) loads.push_back(link->load());
  }
  return loads;
}

std::vector<RailProxy::Rate> RailProxy::take_rates(std::uint64_t now) {
  std::vector<Rate> rates;
  for (auto& port : ports_) {
    for (auto& [peer, link] : port->links()) {
      const auto rate = link->take_rate();
      if (rate || link->is_rate_old(now)) rates.push_back({port->nic(), peer, rate});
    }
  }
  return rates;
}

}  // namespace railweave::engine
