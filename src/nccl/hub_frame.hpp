// What hub and client write to each other; same byte order at both ends, as NCCL itself assumes.
#pragma once

#include <cstdint>

namespace railweave::nccl {

inline constexpr std::uint32_t kHubMagic = 0x43485752;  // "RWHC"
inline constexpr std::uint32_t kMaxName = 4096;
inline constexpr std::uint32_t kMaxBlob = 64u << 10;
inline constexpr std::uint32_t kMaxWorld = 1u << 20;

// Followed by name and blob.
struct JoinFrame {
  std::uint32_t magic = kHubMagic;
  std::uint8_t nonce[16] = {};
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
  std::uint32_t limit_ms = 0;
  std::uint32_t name_bytes = 0;
  std::uint32_t blob_bytes = 0;
};

// Followed by length (32 bit) and bytes: `world` blobs when complete, the ranks that are missing when expired.
struct AnswerFrame {
  std::uint32_t magic = kHubMagic;
  std::uint32_t status = 0;  // RoundStatus
  std::uint32_t first = 0;   // expired: as Round has them
  std::uint32_t left = 0;
};

}  // namespace railweave::nccl
