#include "checksum.hpp"

namespace railweave::cuda {

std::uint32_t place_checks(std::span<CheckedMessage> messages) {
  std::uint32_t blocks = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    CheckedMessage& m = messages[i];
    m.ordinal = 0;
    for (std::size_t k = 0; m.count != nullptr && k < i; ++k) m.ordinal += messages[k].count == m.count ? 1 : 0;
    m.first_block = blocks;
    blocks += checked_chunks(m.bytes);
  }
  return blocks;
}

std::string damage_text(const Damage& damage) {
  const std::string message = "message " + std::to_string(damage.number) + " from rank " + std::to_string(damage.peer);
  if (damage.bytes != damage.sent_bytes)
    return message + " has " + std::to_string(damage.bytes) + " bytes here and " + std::to_string(damage.sent_bytes) +
           " in its checksums: one of them was damaged on its way";
  const std::uint64_t size = checked_chunk_bytes(damage.bytes), begin = damage.chunk * size;
  const std::uint64_t end = damage.bytes - begin < size ? damage.bytes : begin + size;
  return message + " (" + std::to_string(damage.bytes) + " bytes) was damaged on its way: chunk " + std::to_string(damage.chunk) + " of " +
         std::to_string(checked_chunks(damage.bytes)) + ", bytes " + std::to_string(begin) + " to " + std::to_string(end - 1) +
         ", is the first whose checksum is not its sender's";
}

}  // namespace railweave::cuda
