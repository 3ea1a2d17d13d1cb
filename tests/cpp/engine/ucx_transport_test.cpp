// Two NICs of this machine that talk through UCX.
#include "ucx_transport.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <map>

#include "job.hpp"
#include "parts.hpp"
#include "socket_transport.hpp"
#include "ucx_library.hpp"

namespace railweave::test {
namespace {

using engine::RailFrame;
using engine::RailHeader;

constexpr std::size_t kPiece = 64u << 10;
constexpr std::size_t kLarge = 4 * kPiece;  // several fragments

class Nic final : public engine::TransportListener {
 public:
  explicit Nic(std::uint32_t id) : id_(id), transport_(engine::make_ucx_transport(engine::UcxLibrary::load(test_ucx_library()), "lo", {})) {
    transport_->set_listener(this);
  }
  engine::Transport& transport() { return *transport_; }
  void connect(const Nic& peer) { transport_->connect(peer.id_, peer.transport_->address()); }
  // A frame that waits for one with a payload, or for a flush.
  void hold(const Nic& peer, std::uint64_t number) {
    RailHeader header;
    header.from_nic = id_;
    header.to_nic = peer.id_;
    header.transfer = number;
    transport_->send(peer.id_, header, {}, 0);
  }
  void send(const Nic& peer, std::span<const std::byte> payload) {
    RailHeader header;
    header.kind = payload.empty() ? RailFrame::ping : RailFrame::data;
    header.from_nic = id_;
    header.to_nic = peer.id_;
    transport_->send(peer.id_, header, payload, 0);
    transport_->flush();
  }

  std::byte* on_incoming(const RailHeader&, std::size_t bytes) override { return bytes <= inbox_.size() ? inbox_.data() : nullptr; }
  void on_delivered(const RailHeader& header, std::byte*, std::size_t, bool ok) override {
    if (ok) ++received[header.kind];
    if (header.transfer != 0) numbers.push_back(header.transfer);
    if (header.kind == RailFrame::data) numbers_before_data = numbers.size();
  }
  void on_carried(const RailHeader&, std::span<const std::byte>) override {}
  void on_sent(std::uint64_t) override {}
  void on_peer_lost(std::uint32_t) override { lost = true; }

  std::map<RailFrame, int> received;
  std::vector<std::uint64_t> numbers;  // of frames that were held
  std::size_t numbers_before_data = 0;
  bool lost = false;

 private:
  std::uint32_t id_;
  std::unique_ptr<engine::Transport> transport_;
  std::vector<std::byte> inbox_ = std::vector<std::byte>(kLarge);
};

class UcxTransport : public testing::Test {
 protected:
  bool until(const std::function<bool()>& done) { return progress_until(a_.transport(), b_.transport(), done); }
  void SetUp() override {
    a_.connect(b_);
    b_.connect(a_);
    a_.send(b_, large_);
    b_.send(a_, large_);
    ASSERT_TRUE(until([&] { return a_.received[RailFrame::data] == 1 && b_.received[RailFrame::data] == 1; }));
  }

  void renew(Nic& from, Nic& to) {
    if (!from.lost) return;
    from.lost = false;
    from.connect(to);
    from.send(to, {});
    from.send(to, large_);
    to.send(from, large_);
  }

  Nic a_{0}, b_{1};
  std::vector<std::byte> large_ = std::vector<std::byte>(kLarge);
};

TEST_F(UcxTransport, SmallFramesGoAlongWithAPayloadInTheirOrder) {
  constexpr std::size_t kFrames = 21;  // more than one message takes
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t number = 1; number <= kFrames; ++number) {
    a_.hold(b_, number);
    numbers.push_back(number);
  }
  a_.send(b_, large_);
  ASSERT_TRUE(until([&] { return b_.received[RailFrame::data] == 2; }));
  EXPECT_EQ(b_.numbers, numbers);
  EXPECT_EQ(b_.numbers_before_data, kFrames);
  a_.hold(b_, kFrames + 1);
  a_.transport().flush();
  EXPECT_TRUE(until([&] { return b_.numbers.size() == kFrames + 1; }));
}

// A job's NICs may be of both kinds.
TEST_F(UcxTransport, AnAddressOfTheOtherKindConnectsNothing) {
  const auto socket = engine::make_socket_transport("lo", kLarge);
  a_.transport().connect(5, socket->address());
  socket->connect(0, a_.transport().address());
  int sent = 0;
  class Counts final : public engine::TransportListener {
   public:
    explicit Counts(int& sent) : sent_(sent) {}
    std::byte* on_incoming(const RailHeader&, std::size_t) override { return nullptr; }
    void on_delivered(const RailHeader&, std::byte*, std::size_t, bool) override {}
    void on_carried(const RailHeader&, std::span<const std::byte>) override {}
    void on_sent(std::uint64_t) override { ++sent_; }
    void on_peer_lost(std::uint32_t) override {}

   private:
    int& sent_;
  } counts(sent);
  socket->set_listener(&counts);
  socket->send(0, {}, large_, 1);
  EXPECT_EQ(sent, 1) << "given back at once";
  a_.send(b_, large_);
  EXPECT_TRUE(until([&] { return b_.received[RailFrame::data] == 2; }));
  socket->set_listener(nullptr);
}

// Both ends do as a link does: what was lost is connected again, and a small frame and large ones go out.
TEST_F(UcxTransport, EndsThatWereMadeAnewOnOneSideOnlyComeTogetherAgain) {
  if (!a_.transport().reconnects()) GTEST_SKIP() << "this UCX cannot connect again (needs 1.14)";
  for (int fresh = 1; fresh <= 3; ++fresh) {
    for (int i = 0; i < fresh; ++i) b_.connect(a_);
    b_.send(a_, {});
    a_.received.clear();
    b_.received.clear();
    ASSERT_TRUE(until([&] { return a_.lost; })) << "large frames of a to b vanish from now on, and a does not know";
    EXPECT_TRUE(until([&] {
      renew(a_, b_);
      renew(b_, a_);
      return a_.received[RailFrame::data] != 0 && b_.received[RailFrame::data] != 0;
    })) << fresh
        << " fresh endpoints";
  }
}

// While another engine's UCX may read the environment.
TEST(UcxLibrary, OnlyTheFirstOfAProcessSetsVariables) {
  engine::UcxLibrary::load(test_ucx_library());
  ASSERT_STREQ(std::getenv("UCX_TCP_CONN_NB"), "y");
  ::setenv("UCX_TCP_CONN_NB", "n", 1);
  engine::UcxLibrary::load(test_ucx_library());
  EXPECT_STREQ(std::getenv("UCX_TCP_CONN_NB"), "n");
  ::setenv("UCX_TCP_CONN_NB", "y", 1);
}

}  // namespace
}  // namespace railweave::test
