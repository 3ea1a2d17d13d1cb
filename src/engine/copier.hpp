// Who moves bytes between users' buffers and slots: the engine thread itself, or a GPU's kernel, which says later what it has copied.
// Buffers that mates write (Engine::allocate) want one that copies at once: who is asked to leave such a buffer alone answers at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace railweave::engine {

class Copier {
 public:
  virtual ~Copier() = default;
  // Whether another push may begin. Pulls always may: they free what others wait for.
  virtual bool has_room() const = 0;
  // Copies out of a user's buffer, or into one. True: it has been done. False: `ticket` comes back from take_ended(), and until then
  // neither side may be used for anything else.
  virtual bool push(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t ticket) = 0;
  virtual bool pull(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t ticket) = 0;
  // What a frame has brought into a user's buffer; `data` is the caller's again when this returns.
  virtual bool put(std::byte* to, std::span<const std::byte> data, std::uint64_t ticket) = 0;
  struct Ended {
    std::uint64_t ticket;
    bool made;  // false: given up, with the operation that it belongs to
  };
  // Adds the copies that have ended since the last call. Every copy ends.
  virtual void take_ended(std::vector<Ended>& ended) = 0;
};

}  // namespace railweave::engine
