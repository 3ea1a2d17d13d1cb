#include "gpu_exchange_options.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "traffic_patterns.hpp"

namespace {

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

// All of a text.
template <typename T>
T number(const std::string& name, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(name + " " + std::string(text) + ": expected a number");
  return value;
}

std::vector<std::string> listed(const std::string& value) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t end = std::min(value.find(',', at), value.size());
    parts.push_back(value.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

void check_pattern(const std::string& name) {
  constexpr std::uint32_t kRanksThatHaveAll = 3;
  const std::vector<Pattern> known = traffic_patterns(kRanksThatHaveAll, 0);
  if (std::any_of(known.begin(), known.end(), [&](const Pattern& each) { return name == each.option; })) return;
  std::string names;
  for (const Pattern& each : known) names += (names.empty() ? "" : ", ") + std::string(each.option);
  refuse("--patterns " + name + ": expected some of " + names);
}

}  // namespace

const char* usage() {
  return R"(usage: gpu_exchange --railweave librailweave_cuda.so [--nccl libnccl.so.2] [OPTIONS]

Railweave's exchange between GPUs beside NCCL's groups of sends and receives, in turns.
Without --nccl nothing is measured.

What is measured:
  --sizes N,...     bytes of the busiest pair
  --patterns P,...  pair, hot and half (a pair with 1/16 and 1/2 of its bytes between all
                    others), balanced, own (balanced, and as much to oneself); from three
                    ranks on also both (a pair both ways), incast, outcast, zipf, rotating.
                    By default all.
  --rounds N        by default 5
  --parts N         a pair's bytes go in so many messages, which are as 1 : 2 : 3 ..., as
                    those to several peers are
  --graph           replays of captured operations, not queued calls
  --waited          each operation is waited for before the next, as a program sees it, with
                    one of the other system between, as other kernels are in programs
  --fresh N         for how long messages into so many new buffers go through slots

What is checked:
  --check N         random operations first, each 50th of 5,000 messages
  --large           of few and large messages instead, as those are that take several paths
  --lives N         communicators that come and go, with nothing left of them
  --death           at the end the last rank is killed while others wait

Ranks:
  --ranks N         so many, not one a GPU. They share GPUs then (best under MPS:
                    benchmarks/gpus/under_mps.py), each a host of its own to NCCL, which
                    refuses two of a host on one GPU.
  --nodes N         ranks say that they are on so many nodes, which reach each other over
                    loopback: for bytes and failures (rates of rails are the business of
                    `railweave bench`)
  --threads         one process for all ranks (for compute-sanitizer, which does not know
                    memory of other processes)

Buffers (of cudaMalloc by default):
  --virtual         as PyTorch's expandable segments are, which are to be mapped
  --pool            of CUDA's pool, which cannot be mapped
  --offset N        what ranks with even numbers send and receive begins so many bytes
                    behind a boundary, as splits of odd numbers of elements do, so that it
                    is aligned to other places than at their peers
)";
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const std::pair<const char*, bool*> switches[] = {
        {"--graph", &options.graph},  {"--death", &options.death}, {"--threads", &options.threads}, {"--virtual", &options.in_pieces},
        {"--pool", &options.of_pool}, {"--large", &options.large}, {"--waited", &options.waited},   {"--help", &options.help}};
    const auto found = std::find_if(std::begin(switches), std::end(switches), [&](const auto& each) { return name == each.first; });
    if (found != std::end(switches)) {
      *found->second = true;
      continue;
    }
    if (i + 1 == argc) refuse(name + ": unknown, or it needs a value");
    const std::string value = argv[++i];
    const std::pair<const char*, std::uint32_t*> numbers[] = {
        {"--rounds", &options.rounds}, {"--check", &options.checks}, {"--nodes", &options.nodes}, {"--ranks", &options.ranks},
        {"--offset", &options.offset}, {"--parts", &options.parts},  {"--fresh", &options.fresh}, {"--lives", &options.lives}};
    const auto counted = std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& each) { return name == each.first; });
    if (counted != std::end(numbers)) {
      *counted->second = number<std::uint32_t>(name, value);
    } else if (name == "--railweave") {
      options.railweave = value;
    } else if (name == "--nccl") {
      options.nccl = value;
    } else if (name == "--patterns") {
      options.patterns = listed(value);
      for (const std::string& pattern : options.patterns) check_pattern(pattern);
    } else if (name == "--sizes") {
      options.sizes.clear();
      for (const std::string& size : listed(value)) options.sizes.push_back(number<std::uint64_t>(name, size));
    } else {
      refuse("unknown option " + name);
    }
  }
  if (options.help) return options;
  if (options.railweave.empty()) refuse("--railweave is needed");
  if (options.parts == 0) refuse("--parts: expected 1 or more");
  if (options.rounds == 0) refuse("--rounds: expected 1 or more");
  if (options.nccl.empty()) options.sizes.clear();
  if (options.of_pool && options.in_pieces) refuse("--pool and --virtual: buffers are of one kind");
  if (options.waited && options.graph) refuse("--waited: calls are waited for, not replays; without --graph");
  if (options.threads && options.death) refuse("--death ends a process: not with --threads");
  return options;
}
