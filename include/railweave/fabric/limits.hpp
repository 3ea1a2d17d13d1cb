// Largest fabrics that are accepted. Far above what is built today, and low enough that no input makes a reader ask for
// memory or time without bound.
#pragma once

#include <cstddef>
#include <cstdint>

namespace railweave::limits {

inline constexpr std::uint32_t kNodes = 16'384;
inline constexpr std::uint32_t kGpus = 65'536;
inline constexpr std::uint32_t kVertices = 1U << 20U;
inline constexpr std::uint32_t kEdges = 1U << 22U;
// GPUs, NICs, switches, ... of one host together; NCCL's own limit is 576 of each kind.
inline constexpr std::uint32_t kVerticesPerNode = 4'096;
inline constexpr std::size_t kNameBytes = 256;
// Of one part. NCCL reads files of up to 16 attributes an element and 255 bytes a value; a GPU has an element for each NVLink.
inline constexpr std::size_t kAttributes = 1'024;
inline constexpr std::size_t kAttributeBytes = 1'024;
// Bytes of one input: JSON grows with the cluster, the others describe one node or a network in general terms.
inline constexpr std::size_t kJsonBytes = std::size_t{1} << 28U;
inline constexpr std::size_t kYamlBytes = std::size_t{1} << 20U;
inline constexpr std::size_t kXmlBytes = std::size_t{1} << 24U;
// Nesting of elements, maps and lists.
inline constexpr std::uint32_t kDepth = 32;
// 2^60 bytes/s (an exabyte a second): sums of a node's capacities stay below 2^63.
inline constexpr std::uint64_t kCapacityBps = std::uint64_t{1} << 60U;
// An hour: anything longer is a wrong unit.
inline constexpr std::uint64_t kLatencyNs = 3'600'000'000'000;

}  // namespace railweave::limits
