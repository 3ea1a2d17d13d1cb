// Ranks that have buffers and ranks that write into them, over real mailboxes and memory of the host.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "extent_book.hpp"
#include "host_virtual_memory.hpp"
#include "mailbox.hpp"
#include "mate_book.hpp"

namespace railweave::test {

inline constexpr std::uint64_t kChunk = HostVirtualMemory::kChunk;

// A rank that has buffers.
struct Owner {
  explicit Owner(std::vector<int> reached = {}) : book(memory, shared.at<cuda::BookPage>(0), 3, std::move(reached), remarks) {
    page().newest = cuda::kAbsoluteBuffer;
  }
  cuda::BookPage& page() { return shared.at<cuda::BookPage>(0); }

  HostVirtualMemory memory;
  engine::SharedMemory shared = engine::SharedMemory::create("book", sizeof(cuda::BookPage));
  std::vector<std::string> said;
  cuda::Remarks remarks{[this](const std::string& text) { said.push_back(text); }};
  cuda::ExtentBook book;
};

// A rank that writes into them.
struct Writer {
  explicit Writer(const engine::MemoryHandle& book_handle) {
    cuda::MappingTable table;
    table.write = [this](std::uint32_t index, cuda::Mapping mapping) { entries[index] = mapping; };
    book = std::make_unique<cuda::MateBook>(book_handle, table, &memory, "rank 3", remarks);
  }
  void look(bool captured = false, bool quiet = false, bool settled = true) {
    std::vector<cuda::Mail> mail;
    while (auto next = mailbox.receive()) mail.push_back(std::move(*next));
    std::vector<const cuda::Mail*> pointers;
    for (const cuda::Mail& each : mail) {
      EXPECT_EQ(cuda::ExtentArrivals::sender(each), 3u);
      pointers.push_back(&each);
    }
    book->follow({enqueued, completed, captured, settled, quiet}, pointers);
  }
  // What a kernel does with a grant: the address to write to, or none, which is to use slots.
  std::byte* find(const cuda::BufferName& name) const {
    const cuda::Mapping& mapping = entries[name.buffer % cuda::kMappings];
    return mapping.buffer == cuda::granted_name(name.buffer) ? reinterpret_cast<std::byte*>(mapping.base + name.offset) : nullptr;
  }

  HostVirtualMemory memory;
  cuda::Mailbox mailbox;
  std::vector<std::string> said;
  cuda::Remarks remarks{[this](const std::string& text) { said.push_back(text); }};
  cuda::Mapping entries[cuda::kMappings]{};
  std::uint64_t enqueued = 0, completed = 0;
  std::unique_ptr<cuda::MateBook> book;
};

// As often as it takes for all mail to arrive, and none to be on its way.
inline void exchange_mail(Owner& owner, Writer& writer) {
  for (int turn = 0; turn < 64; ++turn) {
    owner.book.deliver();
    writer.look();
  }
}

inline std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace railweave::test
