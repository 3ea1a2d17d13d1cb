// Edges between the operations of a communicator in graphs that are being captured, over a stand-in for those graphs.
#include "capture_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace railweave::cuda {
namespace {

using Stream = int;
using Node = int;
using Order = CaptureOrder<Stream, Node>;

// As CUDA captures: a launch comes after what its stream is behind, and is all that the stream is behind then.
struct Graph {
  Node add(std::set<Node> before) {
    nodes.push_back(std::move(before));
    return static_cast<Node>(nodes.size()) - 1;
  }
  bool comes_after(Node node, Node earlier) const {
    const std::set<Node>& before = nodes[static_cast<std::size_t>(node)];
    if (before.count(earlier) != 0) return true;
    for (const Node each : before) {
      if (comes_after(each, earlier)) return true;
    }
    return false;
  }

  std::vector<std::set<Node>> nodes;  // what each comes after
  std::map<Stream, std::set<Node>> behind;
  std::vector<Node> operations, waits, records;
};

struct Calls {
  Graph& graph;

  void wait_for_event(Stream stream) const {
    graph.waits.push_back(graph.add(graph.behind[stream]));
    graph.behind[stream] = {graph.waits.back()};
  }
  void come_after(Stream stream, Node node) const { graph.behind[stream].insert(node); }
  Node newest(Stream stream) const {
    EXPECT_EQ(graph.behind[stream].size(), 1u);
    return *graph.behind[stream].begin();
  }
  Node record_event(Node node) const {
    graph.records.push_back(graph.add({node}));
    return graph.records.back();
  }
  void move(Node record, Node before, Node after) const {
    EXPECT_EQ(graph.nodes[static_cast<std::size_t>(record)].erase(before), 1u);
    graph.nodes[static_cast<std::size_t>(record)].insert(after);
  }
};

void capture(Order& order, Graph& graph, Order::Id id, Stream stream) {
  const Calls calls{graph};
  order.before(calls, id, stream);
  const Node node = graph.add(graph.behind[stream]);
  graph.behind[stream] = {node};
  graph.operations.push_back(node);
  order.after(calls, id, stream);
}

// The operations one after another, a wait for the event before them all, and its record behind them all.
void check(const Graph& graph) {
  ASSERT_EQ(graph.waits.size(), 1u);
  ASSERT_EQ(graph.records.size(), 1u);
  EXPECT_TRUE(graph.comes_after(graph.operations.front(), graph.waits.front()));
  for (std::size_t i = 1; i < graph.operations.size(); ++i)
    EXPECT_TRUE(graph.comes_after(graph.operations[i], graph.operations[i - 1])) << i;
  EXPECT_EQ(graph.nodes[static_cast<std::size_t>(graph.records.front())], std::set{graph.operations.back()});
}

TEST(CaptureOrder, OperationsOnOtherStreamsComeAfterOneAnother) {
  Order order;
  Graph graph;
  for (const Stream stream : {1, 1, 2, 1, 3, 3}) capture(order, graph, 5, stream);
  check(graph);
}

TEST(CaptureOrder, InterleavedCapturesKeepTheirOrder) {
  Order order;
  Graph one, other;
  capture(order, one, 5, 1);
  capture(order, other, 6, 2);
  capture(order, one, 5, 3);
  capture(order, other, 6, 4);
  capture(order, one, 5, 1);
  check(one);
  check(other);
}

// As many captures as a program likes, each of which goes on while less than kKnown others do.
TEST(CaptureOrder, RandomCaptures) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random); };
  Order order;
  std::vector<std::pair<Order::Id, Graph>> captures;  // used last behind
  Order::Id newest = 0;
  std::size_t longest = 0;
  for (int step = 0; step < 5000; ++step) {
    if (captures.empty() || below(8) == 0) {
      captures.emplace_back(++newest, Graph{});
    } else {
      const auto at = captures.begin() + static_cast<std::ptrdiff_t>(below(captures.size()));
      std::rotate(at, at + 1, captures.end());
    }
    auto& [id, graph] = captures.back();
    capture(order, graph, id, static_cast<Stream>(below(4)));
    longest = std::max(longest, graph.operations.size());
    if (captures.size() <= Order::kKnown) continue;
    check(captures.front().second);
    captures.erase(captures.begin());
  }
  for (const auto& [_, graph] : captures) check(graph);
  EXPECT_GT(longest, 10u);
}

}  // namespace
}  // namespace railweave::cuda
