// How the ranks of a communicator find each other, and each other's memory.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "../engine/cluster.hpp"
#include "../engine/wire.hpp"
#include "communicator.hpp"
#include "railweave/engine/error.hpp"
#include "refusal.hpp"
#include "settings.hpp"

namespace railweave::cuda {
namespace {

using engine::Blob;

constexpr std::uint32_t kHello = 0x52574748;  // "RWGH"
// Raised with each change of what ranks of a node share or tell each other: ports, books, mails, and the records below.
constexpr std::uint32_t kGpuProtocolVersion = 11;
static_assert(sizeof(Port) == 1048192 && sizeof(BookPage) == 81944, "another layout: raise kGpuProtocolVersion, and change these sizes");

int open_pidfd(std::int32_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

// Who runs where, and what all have to agree on.
struct Hello {
  std::string problem;  // why the rank cannot take part, or nothing
  std::string node;
  std::string no_peer_access;  // what switches it off, or nothing
  cudaUUID_t gpu{};
  std::int32_t process = 0;
  std::uint64_t low_latency_bytes = 0;
  std::uint8_t by_ranks = 0;  // those may be more where the ranks are few and their GPUs able to
  std::uint64_t most_nodes = 0;
  std::uint64_t checksum = 0;
  std::uint64_t emulated_mesh = 0;
  NodeFacts facts;
};

Blob encode(const Hello& hello, std::uint32_t world) {
  engine::ByteWriter out;
  out.put(kHello)
      .put(kGpuProtocolVersion)
      .put(world)
      .text(hello.problem)
      .text(hello.node)
      .text(hello.no_peer_access)
      .put(hello.gpu)
      .put(hello.process)
      .put(hello.low_latency_bytes)
      .put(hello.by_ranks)
      .put(hello.most_nodes)
      .put(hello.checksum);
  out.put(hello.emulated_mesh).text(hello.facts.network).put(hello.facts.cpus).put(hello.facts.quota);
  return out.take();
}

[[noreturn]] void refuse_version(const std::string& who) {
  throw BootstrapError(who + " does not speak this version of Railweave's GPU protocol (" + std::to_string(kGpuProtocolVersion) +
                       "): install the same Railweave everywhere");
}

Hello decode_hello(const Blob& blob, const std::string& who, std::uint32_t world) {
  engine::ByteReader in(blob);
  const auto magic = in.get<std::uint32_t>(), version = in.get<std::uint32_t>();
  if (magic != kHello || version != kGpuProtocolVersion) refuse_version(who);
  const auto peer_world = in.get<std::uint32_t>();
  Hello hello;
  hello.problem = in.text();
  hello.node = in.text();
  hello.no_peer_access = in.text();
  hello.gpu = in.get<cudaUUID_t>();
  hello.process = in.get<std::int32_t>();
  hello.low_latency_bytes = in.get<std::uint64_t>();
  hello.by_ranks = in.get<std::uint8_t>();
  hello.most_nodes = in.get<std::uint64_t>();
  hello.checksum = in.get<std::uint64_t>();
  hello.emulated_mesh = in.get<std::uint64_t>();
  hello.facts.network = in.text();
  hello.facts.cpus = in.get<CpuSet>();
  hello.facts.quota = in.get<std::uint32_t>();
  if (!in.ok()) refuse_version(who);
  if (!hello.problem.empty()) throw BootstrapError(who + ": " + hello.problem);
  if (peer_world != world)
    throw BootstrapError(who + " was started with world " + std::to_string(peer_world) + "; expected " + std::to_string(world));
  return hello;
}

void check_equal(const std::string& who, const std::string& setting, std::uint64_t theirs, std::uint64_t mine) {
  if (theirs == mine) return;
  throw BootstrapError(who + " has " + setting + " " + std::to_string(theirs) + "; expected " + std::to_string(mine) +
                       ", as ranks must agree");
}

// What a rank has for its mates, or why it has nothing.
struct Offer {
  std::string problem;
  RegionHandle region{};
  IndirectHandle indirect{};
  engine::MemoryHandle book;
  MailboxHandle mailbox;  // none where virtual memory is not mapped
};

Blob encode(const Offer& offer) {
  engine::ByteWriter out;
  out.text(offer.problem).put(offer.region).put(offer.indirect).put(offer.book).put(offer.mailbox);
  return out.take();
}

Offer decode_offer(const Blob& blob, const std::string& who) {
  engine::ByteReader in(blob);
  Offer offer;
  offer.problem = in.text();
  offer.region = in.get<RegionHandle>();
  offer.indirect = in.get<IndirectHandle>();
  offer.book = in.get<engine::MemoryHandle>();
  offer.mailbox = in.get<MailboxHandle>();
  if (!in.ok()) refuse_version(who);
  if (!offer.problem.empty()) throw BootstrapError(who + ": " + offer.problem);
  return offer;
}

bool is_named(const cudaUUID_t& gpu) {
  return std::any_of(std::begin(gpu.bytes), std::end(gpu.bytes), [](char byte) { return byte != 0; });
}

std::string rank_name(std::uint32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

void Communicator::set_up_device() {
  kernels_ = preload_kernels();
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device_), "asking for the device's properties");
  gpu_ = properties.uuid;
  if (settings_.checksum != 0) checker_.emplace(world_);
  // Else a program's first all-to-all would fail where NCCL's does not.
  const std::string refusal = lists_refusal(device_, kernels_.pool != nullptr, std::uint64_t{world_} * (checker_ ? 4 : 2));
  if (!refusal.empty()) throw DeviceError(refusal);
  book_.emplace(remarks_);
  side_stream_ = make_stream();
  last_ = std::shared_ptr<CUevent_st>(make_event());
  join_ = make_event();
}

void Communicator::bring_together(const std::string& rendezvous_address) {
  std::string problem;  // which all ranks are told, so that they do not wait for this one
  try {
    railweave::check(settings_);
    set_up_device();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  std::unique_ptr<engine::Rendezvous> rendezvous;
  std::vector<NodeFacts> facts;
  try {
    rendezvous = engine::make_rendezvous(rendezvous_address, rank_, world_, std::chrono::milliseconds(settings_.bootstrap_ms));
    facts = find_mates(*rendezvous, problem);
  } catch (const BootstrapError&) {
    railweave::check(settings_);  // this rank's own, whatever others said or did not come to hear
    throw;
  }
  meet_mates(*rendezvous);
  if (nodes_ == 1) return rendezvous->finish();
  rails_ = std::make_unique<Rails>(rank_, facts, *rendezvous, settings_, remarks_,
                                   [this](const engine::Failure& failure) { fail(failure_of(failure)); });
}

std::vector<NodeFacts> Communicator::find_mates(engine::Rendezvous& rendezvous, const std::string& problem) {
  const Hello mine{problem,
                   engine::node_identity(settings_),
                   no_peer_access([](const char* name) -> const char* { return std::getenv(name); }),
                   gpu_,
                   ::getpid(),
                   settings_.gpu_low_latency_bytes,
                   settings_.gpu_low_latency_by_ranks && kernels_.most_cluster_blocks > 1,
                   settings_.gpu_nodes,
                   settings_.checksum,
                   settings_.gpu_emulated_mesh,
                   own_node_facts()};
  const std::vector<Blob> blobs = rendezvous.all_gather("gpu-hello", encode(mine, world_));
  std::map<std::string, std::uint64_t> of_node;  // low_latency_bytes of its first rank
  std::map<std::string, std::uint32_t> ranks_of_node;
  std::map<std::string, std::string> without_peers;  // by node: its first rank without, and why
  std::uint32_t mates = 0, others_here = 0;
  bool by_ranks = true, shared = false;  // whether a GPU is
  std::vector<cudaUUID_t> gpus;
  std::string far;  // the first that is no mate, for an error
  std::vector<NodeFacts> facts;
  for (std::uint32_t rank = 0; rank < world_; ++rank) {
    const std::string who = rank_name(rank);
    const Hello theirs = decode_hello(blobs[rank], who, world_);
    facts.push_back(theirs.facts);
    ++ranks_of_node[theirs.node];
    if (!theirs.no_peer_access.empty()) without_peers.try_emplace(theirs.node, who + ": " + theirs.no_peer_access);
    // Packets stay inside a node, and nodes may have been calibrated differently. All ranks check all nodes, so all fail or none.
    const auto first = of_node.try_emplace(theirs.node, theirs.low_latency_bytes).first;
    check_equal(who, "gpu_low_latency_bytes", theirs.low_latency_bytes, first->second);
    check_equal(who, "gpu_nodes", theirs.most_nodes, mine.most_nodes);
    check_equal(who, "checksum", theirs.checksum, mine.checksum);
    check_equal(who, "gpu_emulated_mesh", theirs.emulated_mesh, mine.emulated_mesh);
    // Nodes of a lab may share GPUs, too. Ranks of this process are counted by what they hold. A GPU without a name is nobody else's.
    const auto is_theirs = [&](const cudaUUID_t& gpu) { return is_named(gpu) && std::memcmp(&gpu, &theirs.gpu, sizeof gpu) == 0; };
    if (is_theirs(mine.gpu)) others_here += theirs.process != mine.process;
    shared = shared || std::any_of(gpus.begin(), gpus.end(), is_theirs);
    gpus.push_back(theirs.gpu);
    by_ranks = by_ranks && theirs.by_ranks != 0;
    if (theirs.node == mine.node)
      mate_of_[rank] = mates++;
    else if (far.empty())
      far = who + " runs on another node" + other_namespace(theirs.node, mine.node);
  }
  share_ = {kernels_.processors, 1 + others_here, kernels_.most_cluster_blocks};
  nodes_ = static_cast<std::uint32_t>(of_node.size());
  // Beside rails larger messages would go by the general roles; where ranks share a GPU, and without clusters, none has been measured.
  low_latency_bytes_ = by_ranks && !shared && nodes_ == 1 ? packets_up_to(world_) : settings_.gpu_low_latency_bytes;
  if (settings_.gpu_nodes != 0 && nodes_ > settings_.gpu_nodes)
    throw BootstrapError(far + "; its ranks run on " + std::to_string(nodes_) + " nodes, RAILWEAVE_GPU_NODES allows " +
                         std::to_string(settings_.gpu_nodes));
  for (const auto& [node, why] : without_peers) {
    if (ranks_of_node[node] > 1) throw BootstrapError(why + " switches peer access between GPUs off, and messages inside a node need it");
  }
  // An all-to-all has to fit, as for lists_refusal().
  const std::uint32_t most = checker_ ? std::min(kMostListed / 4, kMostChecked / 2) : kMostListed / 2;
  if (nodes_ > 1 && world_ > most)
    throw BootstrapError(std::to_string(world_) +
                         " ranks on several nodes; an operation with messages to other nodes has room for an all-to-all of " +
                         std::to_string(most) + (checker_ ? " in the checksum mode" : ""));
  return facts;
}

void Communicator::meet_mates(engine::Rendezvous& rendezvous) {
  const auto mates = static_cast<std::uint32_t>(std::count_if(mate_of_.begin(), mate_of_.end(), [](auto mate) { return mate != kFar; }));
  Offer mine;
  try {
    region_.emplace(mate_of_[rank_], mates);
    indirect_.emplace(mate_of_[rank_], mates, settings_, remarks_);
    staging_.emplace(settings_.gpu_staging_bytes - std::min(settings_.gpu_staging_bytes, indirect_->lent_here()));
    mine.region = region_->handle();
    mine.indirect = indirect_->handle();
    mine.book = book_->handle();
    mine.mailbox = open_virtual_memory();
  } catch (const std::exception& error) {
    mine.problem = error.what();
  }
  const std::vector<Blob> blobs = rendezvous.all_gather("gpu-memory", encode(mine));
  std::vector<std::pair<MailboxHandle, Mate>> mailboxes;
  std::vector<int> reached;
  std::string problem;
  try {
    // All before any is mapped: what this rank lacks, its region perhaps, is told here as well.
    std::vector<Offer> offers;
    for (std::uint32_t rank = 0; rank < world_; ++rank) offers.push_back(decode_offer(blobs[rank], rank_name(rank)));
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      if (!near(rank)) continue;
      const std::string who = rank_name(rank);
      const Offer& theirs = offers[rank];
      region_->map(mate_of_[rank], who, theirs.region);
      const bool other_process = theirs.region.pid != mine.region.pid;
      indirect_->map(mate_of_[rank], who, !other_process, theirs.indirect);
      if (rank == rank_) continue;
      mate_books_[rank] =
          std::make_unique<MateBook>(theirs.book, table_of(mate_of_[rank], other_process), virtual_memory_.get(), who, remarks_);
      if (!other_process) reached.push_back(theirs.region.device);
      if (other_process) {
        processes_[rank] = engine::Fd(open_pidfd(theirs.region.pid));
        if (!processes_[rank]) throw BootstrapError(who + ": its process cannot be watched (pidfd_open: " + std::strerror(errno) + ")");
      }
      mates_.push_back({rank, &mate_books_[rank]->page().life, processes_[rank].get()});
      if (theirs.mailbox.fd >= 0) mailboxes.emplace_back(theirs.mailbox, mates_.back());
    }
    indirect_->write_paths(*region_);
    if (virtual_memory_ != nullptr) {
      extents_ = &book_->add_extents(*virtual_memory_, rank_, std::move(reached));
      for (const auto& [mailbox, mate] : mailboxes) add_mailbox(mailbox, mate);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  engine::agree(rendezvous, "gpu-mapped", problem);
}

// Without it virtual memory is reached through slots, so what is refused here is no reason to end.
MailboxHandle Communicator::open_virtual_memory() {
  if (settings_.gpu_virtual_memory == 0) return {};
  try {
    virtual_memory_ = make_virtual_memory(device_);
    mailbox_ = std::make_unique<Mailbox>();
    return mailbox_->handle();
  } catch (const Error& error) {
    virtual_memory_.reset();
    remarks_.once(std::string("receive buffers in virtual memory are reached through slots: ") + error.what());
    return {};
  }
}

void Communicator::add_mailbox(const MailboxHandle& mailbox, const Mate& mate) {
  try {
    extents_->add_mate(mailbox, [mate] { return has_left(mate); });
  } catch (const Error& error) {
    remarks_.once(std::string("a rank reaches receive buffers in virtual memory through slots: ") + error.what());
  }
}

MappingTable Communicator::table_of(std::uint32_t mate, bool other_process) {
  MappingTable table;
  Mapping* const entries = region_->local(mate)->mappings;
  table.write = [this, entries](std::uint32_t index, Mapping mapping) {
    const std::uint64_t none = 0;
    const cudaStream_t stream = side_stream_.get();
    check(cudaMemcpyAsync(&entries[index].buffer, &none, sizeof none, cudaMemcpyHostToDevice, stream), "taking a mapping out of use");
    check(cudaMemcpyAsync(&entries[index].base, &mapping.base, sizeof mapping.base, cudaMemcpyHostToDevice, stream), "writing a mapping");
    check(cudaMemcpyAsync(&entries[index].buffer, &mapping.buffer, sizeof mapping.buffer, cudaMemcpyHostToDevice, stream),
          "putting a mapping into use");
  };
  if (!other_process) return table;
  table.open = [](const void* bytes) -> std::shared_ptr<void> {
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, bytes, sizeof handle);
    void* base = nullptr;
    if (cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess)
      return {base, [](void* opened) { cudaIpcCloseMemHandle(opened); }};
    static_cast<void>(cudaGetLastError());
    return nullptr;
  };
  table.close_alone = [this](bool quiet, const std::function<void()>& close) { return call_alone(quiet, close); };
  return table;
}

}  // namespace railweave::cuda
