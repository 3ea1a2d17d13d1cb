#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What gpu_exchange's command line says (usage()).
struct Options {
  std::string railweave, nccl;
  std::uint32_t rounds = 5, checks = 0, lives = 0, fresh = 0, nodes = 1, ranks = 0, offset = 0, parts = 1;
  bool graph = false, death = false, threads = false, in_pieces = false, of_pool = false, large = false, waited = false, help = false;
  std::vector<std::string> patterns;  // Pattern::option; empty: all
  std::vector<std::uint64_t> sizes{0, 1024, 8192, 32768, 65536, 262144, 1u << 20, 4u << 20, 16u << 20, 64u << 20, 256u << 20};
};

// Throws std::invalid_argument, which says what is wrong.
Options parse(int argc, char** argv);

const char* usage();
