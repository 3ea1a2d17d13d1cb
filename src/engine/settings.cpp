#include "railweave/engine/settings.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "railweave/engine/error.hpp"

namespace railweave {
namespace {

using S = ExchangeSettings;
constexpr std::uint64_t kHour = 3600'000;
constexpr std::uint64_t kMaxEagerBytes = 64u << 10;  // a control frame holds 68 KiB

constexpr std::array kTable{
    Setting{"policy", "", true, 0, 0, "how the source routes its bytes: railweave, single-path, nccl, ucx-rails or nimble",
            "docs/results.md compares them in one engine", &S::policy},
    Setting{"chunk_bytes", "bytes", true, 4096, 64u << 20, "size of a chunk and of a slot",
            "2x4 lab, 400 Mbit/s, medians of 7, windows of as many bytes: zipf:16MiB:1.2 0.265 s with 256 KiB, 0.257 s with 128 KiB, "
            "0.258 s with 64 KiB",
            &S::chunk_bytes},
    Setting{"multipath_min_bytes", "bytes", false, 0, 1ull << 40,
            "a pair with at most this many bytes in an operation takes one path; "
            "between nodes, where the fastest rail is below 50 GB/s, as many as take as long there",
            "same threshold as the NIMBLE paper (arXiv 2604.00317), whose rails have 50 GB/s", &S::multipath_min_bytes},
    Setting{
        "eager_bytes", "bytes", true, 0, kMaxEagerBytes,
        "a message between ranks of at most this size travels in a control frame and waits for no grant",
        "2x4 lab, 400 Mbit/s, balanced matrices, medians of 25 in turn: 2.1 ms at 1 KiB against 3.8 with grants, 4.4 against 6.7 at 8 "
        "KiB, 4.5 against 6.6 at 16 KiB. 2x2 lab of 2 x H200, 8 Gbit/s: a pair of 64 KiB takes 50 us, 149 with 16384; at 400 Mbit/s with "
        "host ranks no difference; a control frame holds no more",
        &S::eager_bytes},
    Setting{"slots_per_writer", "slots", true, 2, 1024, "direct slots, and tx slots, that each rank has for each mate",
            "three windows of a link, as offers run ahead of data by two", &S::slots_per_writer},
    Setting{"rx_slots", "slots", true, 2, 65536, "slots of a NIC for chunks that arrive", "eight windows of a link; not swept",
            &S::rx_slots},
    Setting{"link_window", "transfers", true, 1, 1024,
            "chunks whose data is under way on a link and not yet confirmed; fewer on slow rails: what 7.5 ms carry, but at least 2",
            "2x4 lab, 400 Mbit/s, chunks of 128 KiB, bidir-pair:32MiB (bound 0.168 s) and zipf:16MiB:1.2 (0.235 s), medians of 7: 0.188, "
            "0.255 s with 2 chunks, 0.193, 0.257 s with 3, 0.195, 0.265 s with 4, and zipf 0.347 s with 16: answers wait behind data",
            &S::link_window},
    Setting{"row_wait_us", "us", false, 0, 10'000'000,
            "how long a source waits at most for its peers' rows before it plans with what it has; never longer than a 32nd of the "
            "time that its bytes to other nodes take on one rail",
            "2x4 lab on 4 busy cores, zipf:16MiB:1.2: rows of ranks that start within 4 ms came after up to 25 ms; without one, ranks run "
            "different plans (medians of 9 in turn: 0.40, 0.30, 0.29 s with 2 ms, 0.28, 0.27, 0.28 s with 30 ms)",
            &S::row_wait_us},
    Setting{"spin_us", "us", false, 0, 100'000, "how long the engine thread looks for work before it sleeps",
            "not swept; with more ranks than cores a spin takes time from the peer that is waited for", &S::spin_us},
    Setting{"heartbeat_ms", "ms", true, 1, kHour,
            "how often leases are renewed and silent links are pinged (stretched to 10 ms a link on NICs with many links)", "not swept",
            &S::heartbeat_ms},
    Setting{"resend_ms", "ms", false, 1, kHour, "a rail or control frame without an answer is sent again after this time",
            "ten windows of a 400 Mbit/s rail", &S::resend_ms},
    Setting{"rail_timeout_ms", "ms", false, 1, kHour,
            "a link that answered nothing for this long is down; longer on NICs with many links, and on rails so slow that their chunks "
            "take longer",
            "ten heartbeats; 2x4 lab: a 32 MiB operation whose rail is taken down ends after 1.15 s", &S::rail_timeout_ms},
    Setting{"reconnect_ms", "ms", false, 1, kHour,
            "how soon a link that is down is tried again; while it stays down, up to eight times as long", "half a rail time-out",
            &S::reconnect_ms},
    Setting{"lease_ms", "ms", false, 1, kHour, "a mate whose engine thread showed no life for this long is not used as relay",
            "fifteen heartbeats", &S::lease_ms},
    Setting{"death_ms", "ms", false, 1, kHour, "a node that no link has heard of for this long is dead",
            "leaves 4 s of the 10 s in which every operation must end", &S::death_ms},
    Setting{"drain_ms", "ms", false, 1, kHour,
            "the longest that close() and failing operations wait for others while nothing is moved for them",
            "five times the rail time-out", &S::drain_ms},
    Setting{"bootstrap_ms", "ms", false, 1, kHour, "the longest that ranks wait for each other when the exchange is created",
            "64 Python ranks on 4 cores start within 20 s", &S::bootstrap_ms},
    Setting{
        "gpu_blocks", "blocks", false, 1, 64,
        "most blocks (CTAs) of an operation's kernel on a GPU; below 128 KiB half as many, to three and more peers (in packets, from "
        "them) up to twice as many; of large messages to one peer as many as fill a link, where gpu_pair_rate and gpu_block_rate are "
        "known; "
        "under the NCCL shim no more than NCCL's own kernel has, over several nodes one for each other rank and one more, and than NCCL "
        "is allowed (maxCTAs, NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS, NCCL_MAX_P2P_NCHANNELS); RAILWEAVE_GPU_BLOCKS lifts all but the first "
        "on one node",
        "NCCL 2.28.9 has 17 CTAs from 128 KiB on and 9 at 64 KiB (docs/results.md); `railweave calibrate` measures it", &S::gpu_blocks},
    Setting{"gpu_low_latency_bytes", "bytes", false, 0, 8u << 20,
            "a message between GPUs of at most this size travels with its flags and waits for no grant; ranks of a node must agree; where "
            "nothing sets it, 4 MiB between two ranks and 2 MiB among three or four, on one node with a GPU from sm_90 on each",
            "2 x H100, docs/cuda-measured.md; `railweave calibrate` measures it", &S::gpu_low_latency_bytes},
    Setting{"gpu_nodes", "nodes", true, 0, 1024,
            "most nodes of a communicator between GPUs; one over more is left to NCCL; 0: one over several is served where ranks reach "
            "each other by TCP, at no more than 10 Gbit/s for each, and have four CPUs each",
            "what labs of 2 and 4 x H200 have shown to be as fast as NCCL at least (docs/cuda.md)", &S::gpu_nodes},
    Setting{"gpu_direct", "", false, 0, 3,
            "slots of NICs in the memory of their owner's GPU, which the NICs read and write (GPUDirect): 0: never; 1: where the hardware "
            "has it and the way from NIC to GPU is short; 2: whatever the way; 3: through network interfaces, too, which is for tests, as "
            "it may stand still (docs/cuda.md)",
            "the ways are NCCL's; not measured (docs/cuda.md)", &S::gpu_direct},
    Setting{"gpu_timeout_ms", "ms", false, 1, 24 * kHour, "an operation on GPUs that has not ended after this time fails",
            "three times the 10 minutes after which PyTorch's watchdog gives up", &S::gpu_timeout_ms},
    Setting{
        "gpu_virtual_memory", "", false, 0, 1,
        "1: receive buffers in virtual memory (PyTorch's expandable segments, ncclMemAlloc) are mapped by the other ranks of the node; 0: "
        "they count as memory that cannot be mapped",
        "4 x H200: as fast as memory of cudaMalloc; slots give a pair 18 GB/s of 369 (docs/cuda-measured.md)", &S::gpu_virtual_memory},
    Setting{
        "gpu_staging_bytes", "bytes", false, 0, 4ull << 30,
        "of a communicator, allocated when a receive buffer is met that other ranks cannot map (memory pools): messages are received there "
        "and copied; what does not fit goes through slots; less by what is lent for relays; 0: all does",
        "with ports of eight ranks at most 64 MiB of a GPU; 2 x H100: a pair 0.90 to 0.96 of NCCL's rate, slots 0.11 to 0.22 "
        "(docs/cuda-measured.md)",
        &S::gpu_staging_bytes},
    Setting{
        "gpu_host_share", "thousandths", false, 0, 500,
        "of a large message to one GPU, what goes over pinned host memory (PCIe) beside NVLink: the part that PCIe has of both rates; 0: "
        "nothing does",
        "`railweave calibrate` measures it", &S::gpu_host_share},
    Setting{"gpu_relays", "", false, 0, 1,
            "1: large messages between GPUs go through the node's other GPUs, too, which pays where each pair has NVLinks of its own, "
            "not behind an NVSwitch; at most 8 GPUs",
            "a pair behind an NVSwitch has all of a GPU's bandwidth already (docs/cuda.md)", &S::gpu_relays},
    Setting{
        "gpu_pair_rate", "MB/s", false, 1, 10'000'000,
        "what a GPU writes to another of its node; how many blocks an operation has, and how they are divided, goes by it (docs/cuda.md)",
        "H100 and H200, rounded; `railweave calibrate` measures it", &S::gpu_pair_rate},
    Setting{"gpu_block_rate", "MB/s", false, 1, 1'000'000, "what one block alone writes of that; used in the same places",
            "H100 and H200, rounded; `railweave calibrate` measures it", &S::gpu_block_rate},
    Setting{
        "gpu_emulated_mesh", "GB/s", true, 0, 1000,
        "for measurements behind an NVSwitch: messages that wait for a grant use each ordered pair's NVLink at no more than this rate, as "
        "if the GPUs were a mesh; 0: no limit",
        "", &S::gpu_emulated_mesh},
    Setting{"checksum", "", true, 0, 1,
            "1: receivers of messages between GPUs compare them with their senders' sums; reads all bytes twice", "", &S::checksum},
    Setting{"node_id", "", false, 0, 0,
            "identity of the node; ranks with equal identities share memory (default: boot id, host name and PID namespace)", "",
            &S::node_id},
    Setting{
        "interfaces", "", false, 0, 0,
        "which network interfaces are rails, in the form of NCCL_SOCKET_IFNAME, which counts under the NCCL shim where this is not set: "
        "what names begin with, separated by commas; ^ before the list: all others; = (or ^=): whole names; without it all but those of "
        "container runtimes",
        "", &S::interfaces},
    Setting{"nics", "", false, 0, 0,
            "network interfaces that this rank owns, separated by commas (a comma alone: none); without it a node's interfaces are dealt "
            "to its ranks in order",
            "", &S::nics},
    Setting{
        "ucx_tls", "", true, 0, 0,
        "UCX transports between nodes (UCX_TLS), then for network interfaces, too; default rc,dc,ud for RDMA devices, with cuda_copy for "
        "slots on a GPU, and TCP without UCX for network interfaces",
        "", &S::ucx_tls},
    Setting{"ucx_library", "", false, 0, 0, "libucp.so.0 to load where UCX is used; default the system's", "", &S::ucx_library},
};

[[noreturn]] void refuse(const Setting& setting, std::string_view text, const std::string& expected) {
  throw SettingsError("setting " + std::string(setting.name) + " (" + setting.environment() + "): '" + std::string(text) + "'; expected " +
                      expected);
}

std::uint64_t parse_number(const Setting& setting, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  unsigned shift = 0;
  if (setting.unit == "bytes" && suffix == "KiB") shift = 10;
  if (setting.unit == "bytes" && suffix == "MiB") shift = 20;
  if (setting.unit == "bytes" && suffix == "GiB") shift = 30;
  const bool suffix_ok = suffix.empty() || shift != 0;
  if (status != std::errc{} || !suffix_ok || value > (setting.maximum >> shift) || (value << shift) < setting.minimum) {
    const std::string what = setting.unit.empty() ? "a number" : "a number of " + std::string(setting.unit);
    refuse(setting, text, what + " from " + std::to_string(setting.minimum) + " to " + std::to_string(setting.maximum));
  }
  return value << shift;
}

Policy parse_policy(const Setting& setting, std::string_view text) {
  for (const Policy policy : {Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave}) {
    if (to_string(policy) == text) return policy;
  }
  refuse(setting, text, "railweave, single-path, nccl, ucx-rails or nimble");
}

void try_to_set(const Setting& setting, ExchangeSettings& settings, std::string_view text) {
  try {
    setting.set(settings, text);
  } catch (const SettingsError& error) {
    if (settings.problem.empty()) settings.problem = error.what();
  }
}

}  // namespace

std::string Setting::environment() const {
  std::string result = "RAILWEAVE_";
  for (const char c : name) result += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

std::string Setting::get(const ExchangeSettings& settings) const {
  return std::visit(
      [&](auto pointer) -> std::string {
        const auto& value = settings.*pointer;
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>)
          return value;
        else if constexpr (std::is_same_v<Value, Policy>)
          return std::string(to_string(value));
        else
          return std::to_string(value);
      },
      member);
}

void Setting::set(ExchangeSettings& settings, std::string_view text) const {
  std::visit(
      [&](auto pointer) {
        auto& value = settings.*pointer;
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>)
          value = std::string(text);
        else if constexpr (std::is_same_v<Value, Policy>)
          value = parse_policy(*this, text);
        else
          value = parse_number(*this, text);
      },
      member);
}

std::span<const Setting> settings_table() { return kTable; }

ExchangeSettings settings_from_environment(const ExchangeSettings& defaults) {
  ExchangeSettings settings = defaults;
  for (const Setting& setting : kTable) {
    if (const char* text = std::getenv(setting.environment().c_str()); text != nullptr && *text != '\0')
      try_to_set(setting, settings, text);
  }
  return settings;
}

void set(ExchangeSettings& settings, std::string_view name, std::string_view text) {
  const auto* const found = std::find_if(kTable.begin(), kTable.end(), [&](const Setting& setting) { return setting.name == name; });
  if (found != kTable.end())
    try_to_set(*found, settings, text);
  else if (settings.problem.empty())
    settings.problem = "no setting named '" + std::string(name) + "'; docs/settings.md lists them";
}

void check(const ExchangeSettings& settings) {
  if (!settings.problem.empty()) throw SettingsError(settings.problem);
  for (const Setting& setting : kTable) {
    if (!std::holds_alternative<std::uint64_t ExchangeSettings::*>(setting.member)) continue;
    ExchangeSettings scratch;
    setting.set(scratch, setting.get(settings));
  }
}

std::string settings_markdown() {
  const ExchangeSettings defaults;
  std::string text = "| setting | default | unit | agree | meaning | why this default |\n|---|---|---|---|---|---|\n";
  for (const Setting& setting : kTable) {
    text += "| `" + std::string(setting.name) + "` | " + setting.get(defaults) + " | " + std::string(setting.unit) + " | " +
            (setting.must_agree ? "yes" : "") + " | " + std::string(setting.help) + " | " + std::string(setting.measured) + " |\n";
  }
  return text;
}

}  // namespace railweave
