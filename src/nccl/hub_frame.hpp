// What hub and client write to each other; same byte order at both ends, as NCCL itself assumes.
#pragma once

#include <cstdint>

namespace railweave::nccl {

inline constexpr std::uint32_t kHubMagic = 0x42485752;  // "RWHB"
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

// Followed, when complete, by `world` times length (32 bit) and blob.
struct AnswerFrame {
  std::uint32_t magic = kHubMagic;
  std::uint32_t status = 0;  // RoundStatus
};

}  // namespace railweave::nccl
