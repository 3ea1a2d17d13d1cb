// Buffers in virtual memory, and their mappings at mates in other processes. An extent is a run of chunks without a gap; the owner names
// it, and sends each mate's mailbox the chunks as file descriptors; mates map them side by side, in the same order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "book_page.hpp"
#include "mailbox.hpp"
#include "virtual_memory.hpp"

namespace railweave::cuda {

// Of an extent: 20 GiB of PyTorch's 20 MiB chunks.
inline constexpr std::uint32_t kMostChunks = 1024;

// Says something once.
class Remarks {
 public:
  using Say = std::function<void(const std::string&)>;
  // `warn`: of what somebody should mend; by default said as the rest is.
  explicit Remarks(Say say, Say warn = nullptr) : say_(std::move(say)), warn_(std::move(warn)) {}
  void once(const std::string& text) { tell(say_, text); }
  void warn_once(const std::string& text) { tell(warn_ ? warn_ : say_, text); }

 private:
  void tell(const Say& how, const std::string& text);

  Say say_, warn_;
  std::mutex mutex_;
  std::set<std::string> said_;
};

// The owner's side. `name` is called by the thread that queues operations, the rest by the one that maps.
class ExtentBook {
 public:
  // `reached`: devices of this process' other ranks; memory that all of them can use where it lies needs no mapping there.
  ExtentBook(VirtualMemory& memory, BookPage& page, std::uint32_t rank, std::vector<int> reached, Remarks& remarks);
  // `has_left`: the mate reads its mail no longer, so what waits for it is not kept.
  void add_mate(const MailboxHandle& mailbox, std::function<bool()> has_left = nullptr);

  struct Name {
    BufferName buffer;
    bool reached;
  };
  // Of those bytes, listing them if they are new; nothing where they are no virtual memory that can be shared. What was unmapped and mapped
  // again is new: a name goes with the memory, not with its address.
  std::optional<Name> name(std::uint64_t address, std::uint64_t bytes);

  // Sends what mates do not have yet, as far as they take it. Whether anything was sent.
  bool deliver();
  // Withdraws an extent with a chunk that its program has given up, so that nobody keeps the memory. Looks at so many chunks of one.
  // Whether it has.
  bool look_for_freed(std::size_t most);

 private:
  // Holds on to its chunks' handles: so no other memory has one of them.
  struct Extent {
    Extent(VirtualMemory& memory, std::deque<Chunk> chunks);
    Extent(const Extent&) = delete;
    Extent& operator=(const Extent&) = delete;
    ~Extent();
    std::uint64_t base() const { return chunks.front().base; }
    std::uint64_t end() const { return chunks.back().base + chunks.back().bytes; }
    VirtualMemory& memory;
    const std::deque<Chunk> chunks;
    bool reached = false;
  };
  struct Named {
    std::uint64_t number;
    std::shared_ptr<const Extent> extent;
  };
  struct MateBox {
    MailSender box;
    std::function<bool()> has_left;
  };
  // A part of an extent, on its way.
  struct Parcel {
    Named named;
    std::size_t first;
    std::vector<engine::Fd> descriptors;  // empty until it is its turn
    std::set<std::size_t> waiting;        // mates
  };

  std::shared_ptr<Extent> find_extent(std::uint64_t address, std::uint64_t bytes);
  bool still_there(const Extent& extent, std::uint64_t address, std::uint64_t end) const;
  // Under mutex_.
  void withdraw(std::uint64_t number);
  void drop_unlisted();
  bool pack(Parcel& parcel);
  bool send(Parcel& parcel);

  VirtualMemory& memory_;
  BookPage& page_;
  const std::uint32_t rank_;
  const std::vector<int> reached_;
  Remarks& remarks_;
  std::vector<MateBox> mates_;
  std::mutex mutex_;
  std::vector<Named> named_;    // listed, newest last
  std::list<Parcel> outgoing_;  // the first one is the mapping thread's
  std::uint64_t looked_at_ = 0;
};

// An extent of a mate, mapped here.
class MappedExtent {
 public:
  MappedExtent(VirtualMemory& memory, std::uint64_t bytes);
  MappedExtent(const MappedExtent&) = delete;
  MappedExtent& operator=(const MappedExtent&) = delete;
  ~MappedExtent();
  // Behind what is mapped already.
  void add(const engine::Fd& memory, std::uint64_t bytes);
  // All is mapped.
  void open();

  std::uint64_t base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t mapped() const { return mapped_; }
  std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_.size()); }

 private:
  VirtualMemory& memory_;
  const std::uint64_t bytes_, base_;
  std::uint64_t mapped_ = 0;
  std::vector<Chunk> chunks_;
};

// The mate's side: puts together what one owner sends.
class ExtentArrivals {
 public:
  ExtentArrivals(VirtualMemory& memory, BookPage& owners_page, std::string owner, Remarks& remarks);

  struct Arrived {
    std::uint64_t number;
    std::shared_ptr<const MappedExtent> extent;
  };
  // The extent whose last part this is.
  std::optional<Arrived> take(const Mail& mail);
  // Forgets what was withdrawn before it was complete.
  void tidy();

  // Who sent it: the owner's rank; nothing for what is no mail of an extent.
  static std::optional<std::uint32_t> sender(const Mail& mail);

 private:
  VirtualMemory& memory_;
  BookPage& page_;
  const std::string owner_;
  Remarks& remarks_;
  std::map<std::uint64_t, std::shared_ptr<MappedExtent>> incomplete_;  // by number
};

}  // namespace railweave::cuda
