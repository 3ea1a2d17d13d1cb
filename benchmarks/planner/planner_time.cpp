// How long planning takes: planner_time FABRIC.json REPEAT MATRIX... plans the matrices in turn (so that no plan is
// a repetition of the one before), REPEAT times after one round of warm-up, and prints the microseconds of each as JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "railweave/fabric/fabric_json.hpp"
#include "railweave/planner/planner.hpp"

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double percentile(std::vector<double> values, double part) {
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: planner_time FABRIC.json REPEAT MATRIX...\n";
    return 2;
  }
  const railweave::Fabric fabric = railweave::parse_fabric_json(read(argv[1]), argv[1]);
  const int repeat = std::atoi(argv[2]);
  std::vector<railweave::Demand> demands;
  for (int i = 3; i < argc; ++i) demands.push_back(railweave::parse_demand(read(argv[i]), argv[i]));
  railweave::Planner planner(fabric, {});
  const railweave::LinkState links(fabric);
  std::vector<std::vector<double>> times(demands.size());
  std::vector<double> all;
  for (int round = 0; round <= repeat; ++round) {
    for (std::size_t d = 0; d < demands.size(); ++d) {
      const auto begin = std::chrono::steady_clock::now();
      planner.plan(demands[d], links);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (round != 0) times[d].push_back(took.count());
      if (round != 0) all.push_back(took.count());
    }
  }
  std::printf("{\"p50_us\": %.2f, \"p99_us\": %.2f, \"matrix_p50_us\": [", percentile(all, 0.5), percentile(all, 0.99));
  for (std::size_t d = 0; d < demands.size(); ++d) std::printf("%s%.2f", d == 0 ? "" : ", ", percentile(times[d], 0.5));
  std::printf("]}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "planner_time: " << error.what() << '\n';
    return 1;
  }
}
