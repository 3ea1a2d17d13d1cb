// The lines of a stall's dump, from words as they are found.
#include "waiting.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "packet_roles.hpp"

namespace railweave::cuda {
namespace {

constexpr auto kSend = Direction::send, kReceive = Direction::receive;

std::uint64_t& moved(Port& port, Path path, Direction direction) { return port.counts[count_at(path, direction)].value; }

void grant(Port& port, std::uint64_t number, std::uint64_t buffer) {
  for (std::uint64_t& word : port.grants[number % kGrants].words) word = number << 32;
  port.grants[number % kGrants].words[2] |= buffer;
}

struct Waits : testing::Test {
  std::unique_ptr<Port> port = std::make_unique<Port>();
};

TEST_F(Waits, ForAGrant) {
  moved(*port, Path::granted, kSend) = 8;
  grant(*port, 1, 7);  // of a message that is over, in the place of number 9
  EXPECT_EQ(waiting_text({kSend, Path::granted, 3, 600'000, 0}, *port, false),
            "send of 600000 bytes to rank 3: waits for rank 3's grant: its receive has not begun");
}

TEST_F(Waits, ForItsReceiverToEmptySlots) {
  moved(*port, Path::granted, kSend) = 8;
  grant(*port, 10, kNoBuffer);
  port->taken[2] = 4;
  port->freed[2] = 3;
  port->taken[5] = 1;
  EXPECT_EQ(waiting_text({kSend, Path::granted, 3, 600'000, 1}, *port, false),
            "send of 600000 bytes to rank 3: granted, over slots; slots that rank 3 has not emptied: 2, 5");
}

TEST_F(Waits, InTheMiddleOfAPush) {
  grant(*port, 1, 7);
  EXPECT_EQ(waiting_text({kSend, Path::granted, 0, 600'000, 0}, *port, false),
            "send of 600000 bytes to rank 0: granted, into rank 0's buffer, or over slots until that is mapped");
}

TEST_F(Waits, ForBytesOfItsSender) {
  moved(*port, Path::granted, kReceive) = 4;
  port->placed[5] = 65'536;
  port->filled[1] = 9;
  port->pulled[1] = 8;
  port->records[1] = {5, 98'304, 32'768, 0};
  port->filled[2] = port->pulled[2] = 3;
  port->records[2] = {5, 0, 32'768, 0};  // pulled already
  port->filled[3] = 1;
  port->records[3] = {6, 0, 32'768, 0};  // of the next message
  EXPECT_EQ(waiting_text({kReceive, Path::granted, 2, 600'000, 0}, *port, false),
            "receive of 600000 bytes from rank 2: rank 2 has written 65536 bytes into the buffer; slot 1 has bytes 98304 to 131071");
  EXPECT_EQ(waiting_text({kReceive, Path::granted, 2, 600'000, 8}, *port, false),
            "receive of 600000 bytes from rank 2: not granted yet: 8 messages from rank 2 are under way before it");
}

TEST_F(Waits, ForRoomForPackets) {
  moved(*port, Path::packets, kSend) = 200;
  for (std::uint64_t number = 0; number < 203; ++number) port->credits[number % kPacketSlots] = credit_of(number);
  // Packets to 202 were taken, so 422 may be written, and 423 waits for 203.
  EXPECT_EQ(waiting_text({kSend, Path::packets, 1, 7680, 221}, *port, false),
            "send of 7680 bytes to rank 1: in 2 packets from number 421, for which rank 1 has room");
  EXPECT_EQ(waiting_text({kSend, Path::packets, 1, 7681, 221}, *port, false),
            "send of 7681 bytes to rank 1: in 3 packets from number 421: number 423 waits for rank 1 to take number 203");
}

TEST_F(Waits, ForPackets) {
  moved(*port, Path::packets, kReceive) = 12;
  EXPECT_EQ(waiting_text({kReceive, Path::packets, 1, 1, 3}, *port, false),
            "receive of 1 byte from rank 1: in 1 packet from number 15, of which not all have come");
}

// What an operation moves may be counted while it runs.
TEST_F(Waits, ForPacketsThatAreCounted) {
  for (const auto direction : {kSend, kReceive}) moved(*port, Path::packets, direction) = 215;
  port->newest_packets[0] = port->newest_packets[1] = 9;
  EXPECT_EQ(waiting_text({kReceive, Path::packets, 1, 1, 3}, *port, true),
            "receive of 1 byte from rank 1: in 1 packet from number 209, of which not all have come");
  EXPECT_EQ(waiting_text({kSend, Path::packets, 1, 9 * Packet::kData, 0}, *port, true),
            "send of 34560 bytes to rank 1: in 9 packets from number 206, for which rank 1 has room");
  EXPECT_EQ(waiting_text({kSend, Path::packets, 1, 20 * Packet::kData, 0}, *port, true),
            "send of 76800 bytes to rank 1: in 20 packets from number 206: number 220 waits for rank 1 to take number 0");
}

// A pair of which the peer has left: its counts say which messages it has queued.
struct Unmatched : testing::Test {
  bool unmatched(const Waiting& message) const { return is_unmatched(message, *own, ahead, *peers); }

  bool ahead = false;
  std::unique_ptr<Port> own = std::make_unique<Port>(), peers = std::make_unique<Port>();
};

TEST_F(Unmatched, IsAGrantedMessageThatThePeerHasNotQueued) {
  moved(*own, Path::granted, kSend) = 4;
  moved(*peers, Path::granted, kReceive) = 6;
  EXPECT_FALSE(unmatched({kSend, Path::granted, 1, 600'000, 1}));
  EXPECT_TRUE(unmatched({kSend, Path::granted, 1, 600'000, 2}));
  moved(*own, Path::granted, kReceive) = 7;
  moved(*peers, Path::granted, kSend) = 7;
  EXPECT_TRUE(unmatched({kReceive, Path::granted, 1, 600'000, 0}));
  moved(*peers, Path::granted, kSend) = 8;
  EXPECT_FALSE(unmatched({kReceive, Path::granted, 1, 600'000, 0}));
}

TEST_F(Unmatched, IsAReceiveWhosePacketsWillNotCome) {
  moved(*own, Path::packets, kReceive) = 10;
  moved(*peers, Path::packets, kSend) = 14;
  EXPECT_FALSE(unmatched({kReceive, Path::packets, 1, 2 * Packet::kData, 2}));
  EXPECT_TRUE(unmatched({kReceive, Path::packets, 1, 2 * Packet::kData + 1, 2}));
  moved(*own, Path::packets, kReceive) = 13;
  own->newest_packets[1] = 3;
  ahead = true;
  EXPECT_FALSE(unmatched({kReceive, Path::packets, 1, 2 * Packet::kData, 2}));
  EXPECT_TRUE(unmatched({kReceive, Path::packets, 1, 2 * Packet::kData + 1, 2}));
}

// As under NCCL, what fits into the receiver's slots is sent whether or not anybody receives it.
TEST_F(Unmatched, IsASendOfMorePacketsThanThePeerTakesAndHasRoomFor) {
  moved(*own, Path::packets, kSend) = 100;  // of which the peer never took the last 60
  moved(*peers, Path::packets, kReceive) = 40;
  for (std::uint64_t number = 0; number < 40; ++number) own->credits[number % kPacketSlots] = credit_of(number);
  constexpr std::uint64_t kRoom = kPacketSlots - 60;
  EXPECT_FALSE(unmatched({kSend, Path::packets, 1, kRoom * Packet::kData, 0}));
  EXPECT_TRUE(unmatched({kSend, Path::packets, 1, (kRoom + 1) * Packet::kData, 0}));
  moved(*peers, Path::packets, kReceive) = 100 + kRoom + 1;
  EXPECT_FALSE(unmatched({kSend, Path::packets, 1, (kRoom + 1) * Packet::kData, 0})) << "its credits are on their way";
}

}  // namespace
}  // namespace railweave::cuda
