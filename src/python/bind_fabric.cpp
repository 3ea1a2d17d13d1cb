#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <vector>

#include "railweave/error.hpp"
#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/fabric_json.hpp"
#include "railweave/fabric/link_state.hpp"
#include "railweave/fabric/load.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace railweave;

void bind_rest(nb::module_& m);

namespace {

// kNone and "" are how C++ says "has none"; Python has a word for it.
nb::object id_or_none(std::uint32_t id) { return id == kNone ? nb::none() : nb::cast(id); }

template <class T>
std::vector<T> copied(std::span<const T> items) {
  return {items.begin(), items.end()};
}

template <class T>
const T& element(std::span<const T> items, std::size_t id, const char* what) {
  if (id >= items.size()) throw nb::index_error((std::string(what) + " " + std::to_string(id) + " does not exist").c_str());
  return items[id];
}

}  // namespace

void bind_kinds(nb::module_& m) {
  nb::enum_<VertexKind>(m, "VertexKind")
      .value("gpu", VertexKind::gpu)
      .value("nic", VertexKind::nic)
      .value("pcie_switch", VertexKind::pcie_switch)
      .value("numa", VertexKind::numa)
      .value("nvswitch", VertexKind::nvswitch)
      .value("leaf", VertexKind::leaf)
      .value("spine", VertexKind::spine);
  nb::enum_<EdgeKind>(m, "EdgeKind")
      .value("nvlink", EdgeKind::nvlink)
      .value("c2c", EdgeKind::c2c)
      .value("pcie", EdgeKind::pcie)
      .value("socket", EdgeKind::socket)
      .value("rail", EdgeKind::rail)
      .value("uplink", EdgeKind::uplink);
  nb::enum_<Resource::Kind>(m, "ResourceKind")
      .value("edge", Resource::Kind::edge)
      .value("vertex_egress", Resource::Kind::vertex_egress)
      .value("vertex_ingress", Resource::Kind::vertex_ingress)
      .value("vertex_through", Resource::Kind::vertex_through);
}

namespace {

// A part's kind as Python's enumeration, which is bound by then.
template <class Part>
nb::object kind_of(const Part& part) {
  // Not a constant: threads would wait for the first one with the interpreter's lock, which that one needs.
  static std::atomic<bool> is_bound = false;
  if (!is_bound) {
    nb::module_ m = nb::module_::import_("railweave._native");
    bind_rest(m);
    is_bound = true;
  }
  return nb::cast(part.kind);
}

void bind_parts(nb::module_& m) {
  nb::class_<Vertex>(m, "Vertex", "A GPU, NIC, switch, NUMA node, leaf or spine. Capacities are bytes/s, 0 where it has none of its own.")
      .def_prop_ro("kind", &kind_of<Vertex>, nb::sig("def kind(self) -> VertexKind"))
      .def_prop_ro(
          "node", [](const Vertex& v) { return id_or_none(v.node); }, nb::sig("def node(self) -> int | None"),
          "Number of its host; None for leaf and spine.")
      .def_ro("index", &Vertex::index, "Position among the vertices of its kind on its node.")
      .def_prop_ro(
          "rail", [](const Vertex& v) { return id_or_none(v.rail); }, nb::sig("def rail(self) -> int | None"))
      .def_ro("name", &Vertex::name)
      .def_ro("egress_Bps", &Vertex::egress_Bps)
      .def_ro("ingress_Bps", &Vertex::ingress_Bps)
      .def_ro("through_Bps", &Vertex::through_Bps)
      .def_ro("gdr", &Vertex::gdr)
      .def_ro("model", &Vertex::model)
      .def_ro("bus_id", &Vertex::bus_id)
      .def_ro("source", &Vertex::source)
      .def_prop_ro(
          "attributes", [](const Vertex& v) { return v.attributes == nullptr ? Attributes{} : *v.attributes; },
          "What a topology file says of it beyond that, by element and attribute: \"cpu.affinity\", \"net.guid\".")
      .def("__repr__", [](const Vertex& v) { return "<Vertex " + v.name + ">"; });
  nb::class_<Edge>(m, "Edge", "One direction of a link: vertex ids, bytes/s, nanoseconds.")
      .def_ro("src", &Edge::from)
      .def_ro("dst", &Edge::to)
      .def_prop_ro("kind", &kind_of<Edge>, nb::sig("def kind(self) -> EdgeKind"))
      .def_ro("capacity_Bps", &Edge::capacity_Bps)
      .def_ro("latency_ns", &Edge::latency_ns)
      .def_ro("source", &Edge::source)
      .def("__repr__", [](const Edge& e) { return "<Edge " + std::to_string(e.from) + " -> " + std::to_string(e.to) + ">"; });
  nb::class_<Resource>(m, "Resource", "Anything that can be the bottleneck: an edge, or a vertex's own capacity.")
      .def_prop_ro("kind", &kind_of<Resource>, nb::sig("def kind(self) -> ResourceKind"))
      .def_ro("id", &Resource::id, "Edge id or vertex id, by kind.")
      .def_ro("capacity_Bps", &Resource::capacity_Bps);
}

void bind_graph(nb::module_& m) {
  nb::class_<Fabric>(m, "Fabric", "What a machine or a cluster can carry: an immutable directed graph.")
      .def_prop_ro("name", &Fabric::name)
      .def_prop_ro("gpu_count", &Fabric::gpu_count)
      .def_prop_ro("node_count", &Fabric::node_count)
      .def_prop_ro("node_names",
                   [](const Fabric& f) {
                     std::vector<std::string_view> names;
                     for (NodeId n = 0; n < f.node_count(); ++n) names.push_back(f.node_name(n));
                     return names;
                   })
      .def_prop_ro(
          "vertices", [](const Fabric& f) { return copied(f.vertices()); }, "All vertices; a vertex id is a position in this list.")
      .def_prop_ro(
          "edges", [](const Fabric& f) { return copied(f.edges()); }, "All edges; an edge id is a position in this list.")
      .def_prop_ro(
          "resources", [](const Fabric& f) { return copied(f.resources()); }, "Edges first, then the vertices' own capacities.")
      .def(
          "vertex", [](const Fabric& f, VertexId id) { return element(f.vertices(), id, "vertex"); }, "id"_a)
      .def(
          "edge", [](const Fabric& f, EdgeId id) { return element(f.edges(), id, "edge"); }, "id"_a)
      .def(
          "out_edges", [](const Fabric& f, VertexId id) { return copied(f.out_edges(id)); }, "vertex"_a)
      .def(
          "in_edges", [](const Fabric& f, VertexId id) { return copied(f.in_edges(id)); }, "vertex"_a)
      .def(
          "find_edge", [](const Fabric& f, VertexId from, VertexId to) { return id_or_none(f.find_edge(from, to)); }, "src"_a, "dst"_a,
          nb::sig("def find_edge(self, src: int, dst: int) -> int | None"))
      .def(
          "find_vertex", [](const Fabric& f, std::string_view name) { return id_or_none(f.find_vertex(name)); }, "name"_a,
          nb::sig("def find_vertex(self, name: str) -> int | None"))
      .def(
          "vertex_resource", [](const Fabric& f, VertexId id, Resource::Kind kind) { return id_or_none(f.vertex_resource(id, kind)); },
          "vertex"_a, "kind"_a, nb::sig("def vertex_resource(self, vertex: int, kind: ResourceKind) -> int | None"))
      .def(
          "describe",
          [](const Fabric& f, ResourceId id) {
            element(f.resources(), id, "resource");
            return f.describe(id);
          },
          "resource"_a, "A resource in words, e.g. 'node0/nic1 -> leaf1 (rail)'.")
      .def("gpu", &Fabric::gpu, "gpu"_a, "Vertex id of a GPU by its number, which is its rank.")
      .def("node_of", &Fabric::node_of, "gpu"_a)
      .def("first_gpu", &Fabric::first_gpu, "node"_a)
      .def(
          "gpus_of", [](const Fabric& f, NodeId id) { return copied(f.gpus_of(id)); }, "node"_a, "Vertex ids of a node's GPUs.")
      .def(
          "nics_of", [](const Fabric& f, NodeId id) { return copied(f.nics_of(id)); }, "node"_a, "Vertex ids of a node's NICs.")
      .def(
          "numas_of",
          [](const Fabric& f, NodeId id) {
            std::vector<VertexId> found;
            for (VertexId v = 0; v < f.vertices().size(); ++v) {
              if (f.vertex(v).kind == VertexKind::numa && f.vertex(v).node == id) found.push_back(v);
            }
            return found;
          },
          "node"_a, "Vertex ids of a node's NUMA nodes.")
      .def(
          "ports_of",
          [](const Fabric& f, VertexId nic) {
            std::vector<EdgeId> found;
            for (const EdgeId e : f.out_edges(nic)) {
              if (f.edge(e).kind == EdgeKind::rail) found.push_back(e);
            }
            return found;
          },
          "nic"_a, "Ids of the edges from a NIC to the network.")
      .def("to_json", &format_fabric_json, "The versioned JSON form (docs/fabric.md).")
      .def_static("from_json", &parse_fabric_json, "text"_a, "source"_a = "<string>",
                  "Reads the JSON form. Raises ParseError with line, column and path.")
      .def("__repr__", [](const Fabric& f) {
        return "<Fabric " + std::string(f.name()) + ": " + std::to_string(f.node_count()) + " nodes, " + std::to_string(f.gpu_count()) +
               " GPUs>";
      });
}

}  // namespace

void bind_link_state(nb::module_& m) {
  nb::class_<LinkState>(m, "LinkState", "What is known at run time about a fabric's links: measured rates, links that are down.")
      .def(nb::init<const Fabric&>(), "fabric"_a, "All links up, at their nominal rate, epoch 0.")
      .def_prop_ro("epoch", &LinkState::epoch)
      .def("is_down", &LinkState::is_down, "edge"_a)
      .def("rate_Bps", &LinkState::rate_Bps, "edge"_a, "bytes/s that the edge gives now; 0 when down.")
      .def("set_rate", &LinkState::set_rate, "edge"_a, "measured_Bps"_a)
      .def("set_down", &LinkState::set_down, "edge"_a, "down"_a)
      .def("adopt", &LinkState::adopt, "other"_a, "Takes over what another rank reported, with its epoch.")
      .def(nb::self == nb::self);
}

namespace {

using Folders = std::vector<std::filesystem::path>;

void bind_sources(nb::module_& m) {
  m.def(
      "load_fabric",
      [](const std::string& what, std::uint32_t nodes, const Folders& template_dirs) {
        return load_fabric(what, {nodes, template_dirs});
      },
      "what"_a, "nodes"_a, "template_dirs"_a, "A file of any kind, or a node template by name; nodes 0: as the file says.");
  m.def(
      "parse_fabric",
      [](std::string_view text, const std::string& source, std::uint32_t nodes, const Folders& template_dirs,
         const std::string& described_by) {
        return parse_fabric(text, source, {nodes, template_dirs, described_by});
      },
      "text"_a, "source"_a, "nodes"_a, "template_dirs"_a, "described_by"_a, "The same from the text of a file.");
  m.def("template_names", &template_names, "template_dirs"_a);
  m.def(
      "template_description",
      [](const std::string& name, const Folders& template_dirs) { return load_node_template(name, template_dirs).description; }, "name"_a,
      "template_dirs"_a);
}

}  // namespace

void bind_fabric(nb::module_& m) {
  bind_parts(m);
  bind_graph(m);
  bind_sources(m);
}
