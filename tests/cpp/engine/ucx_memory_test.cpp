// Payloads in memory that no CPU touches: what UCX is asked for them, when they count as arrived, and what is refused. Host memory in the
// place of a GPU's, over TCP; between the transport and UCX stands a library that notes calls, or answers them itself.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>

#include "job.hpp"
#include "parts.hpp"
#include "railweave/engine/error.hpp"
#include "ucx_library.hpp"
#include "ucx_transport.hpp"

namespace railweave::test {
namespace {

using engine::MemoryKind;
using engine::RailFrame;
using engine::RailHeader;
using engine::UcxLibrary;

constexpr std::size_t kPiece = 64u << 10;

struct Noted {
  struct Send {
    bool rendezvous, named;  // named: with a registration
    ucs_memory_type_t type;
  };
  std::vector<Send> sends;
  bool holds_readings = false;
  int readings = 0, endpoints = 0;
  ucp_send_nbx_callback_t read = nullptr;  // of the reading that is held
  void* reader = nullptr;
  bool lists_cuda = false;
  ucs_status_t mapped = UCS_OK;
  std::vector<std::byte> key;  // instead of UCX's; empty: UCX's
};
Noted noted;
const UcxLibrary* real = nullptr;
char held_request;

std::shared_ptr<const UcxLibrary> noting_library() {
  static const auto loaded = UcxLibrary::load(test_ucx_library());
  real = loaded.get();
  noted = {};
  auto library = std::make_shared<UcxLibrary>(*loaded);
  library->am_send_nbx = [](ucp_ep_h ep, unsigned id, const void* header, std::size_t header_bytes, const void* data, std::size_t bytes,
                            const ucp_request_param_t* param) {
    if (bytes != 0) {
      const bool flags = (param->op_attr_mask & UCP_OP_ATTR_FIELD_FLAGS) != 0;
      noted.sends.push_back({flags && (param->flags & UCP_AM_SEND_FLAG_RNDV) != 0, (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH) != 0,
                             (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) != 0 ? param->memory_type : UCS_MEMORY_TYPE_UNKNOWN});
    }
    return real->am_send_nbx(ep, id, header, header_bytes, data, bytes, param);
  };
  library->get_nbx = [](ucp_ep_h ep, void* to, std::size_t bytes, std::uint64_t from, ucp_rkey_h key, const ucp_request_param_t* param) {
    ++noted.readings;
    if (!noted.holds_readings) return real->get_nbx(ep, to, bytes, from, key, param);
    noted.read = param->cb.send;
    noted.reader = param->user_data;
    return static_cast<ucs_status_ptr_t>(&held_request);
  };
  library->request_free = [](void* request) {
    if (request != &held_request) real->request_free(request);
  };
  library->ep_create = [](ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* ep) {
    ++noted.endpoints;
    return real->ep_create(worker, params, ep);
  };
  library->context_query = [](ucp_context_h context, ucp_context_attr_t* attributes) {
    const ucs_status_t status = real->context_query(context, attributes);
    const auto cuda = std::uint64_t{1} << UCS_MEMORY_TYPE_CUDA;  // whatever this machine has
    attributes->memory_types = noted.lists_cuda ? attributes->memory_types | cuda : attributes->memory_types & ~cuda;
    return status;
  };
  library->mem_map = [](ucp_context_h context, const ucp_mem_map_params_t* params, ucp_mem_h* handle) {
    return noted.mapped == UCS_OK ? real->mem_map(context, params, handle) : noted.mapped;
  };
  library->rkey_pack = [](ucp_context_h context, ucp_mem_h handle, void** key, std::size_t* bytes) {
    if (noted.key.empty()) return real->rkey_pack(context, handle, key, bytes);
    *key = noted.key.data();
    *bytes = noted.key.size();
    return UCS_OK;
  };
  library->rkey_buffer_release = [](void* key) {
    if (key != noted.key.data()) real->rkey_buffer_release(key);
  };
  return library;
}

class Nic final : public engine::TransportListener {
 public:
  Nic(std::uint32_t id, std::shared_ptr<const UcxLibrary> library, bool reads_back) : id_(id) {
    engine::UcxOptions options;
    options.reads_back = reads_back;
    transport_ = engine::make_ucx_transport(std::move(library), "lo", options);
    transport_->set_listener(this);
  }
  ~Nic() { transport_->set_listener(nullptr); }
  engine::Transport& transport() { return *transport_; }
  void use_memory() { transport_->use_memory(memory, MemoryKind::host); }
  void connect(const Nic& peer) { transport_->connect(peer.id_, peer.transport_->address()); }
  void send(const Nic& peer, std::span<const std::byte> payload, RailFrame kind = RailFrame::data) {
    RailHeader header;
    header.kind = kind;
    header.from_nic = id_;
    header.to_nic = peer.id_;
    transport_->send(peer.id_, header, payload, 0);
  }

  std::byte* on_incoming(const RailHeader& header, std::size_t) override {
    return header.kind == RailFrame::data && into_memory ? memory.data() : inbox_.data();
  }
  void on_delivered(const RailHeader&, std::byte*, std::size_t, bool ok) override { ++(ok ? delivered : refused); }
  void on_carried(const RailHeader&, std::span<const std::byte> frames) override { carried.assign(frames.begin(), frames.end()); }
  void on_sent(std::uint64_t) override {}
  void on_peer_lost(std::uint32_t) override {}

  bool into_memory = false;
  int delivered = 0, refused = 0;
  std::vector<std::byte> carried;
  std::vector<std::byte> memory = std::vector<std::byte>(kPiece);

 private:
  std::uint32_t id_;
  std::vector<std::byte> inbox_ = std::vector<std::byte>(kPiece);
  std::unique_ptr<engine::Transport> transport_;
};

class UcxMemoryTest : public testing::Test {
 protected:
  bool until(const std::function<bool()>& done) { return progress_until(a_.transport(), b_.transport(), done); }
  void progress() {
    for (int turns = 0; turns < 1000; ++turns) {
      a_.transport().progress();
      b_.transport().progress();
    }
  }
  void connect() {
    a_.connect(b_);
    b_.connect(a_);
  }

  std::shared_ptr<const UcxLibrary> library_ = noting_library();
  Nic a_{0, library_, true}, b_{1, library_, true};
  std::vector<std::byte> payload_ = std::vector<std::byte>(kPiece, std::byte{7});
};

TEST_F(UcxMemoryTest, DataOutOfItOrIntoItGoesByRendezvousAndUcxIsToldWhatItIs) {
  a_.use_memory();
  a_.into_memory = true;
  connect();
  std::memset(a_.memory.data(), 9, kPiece);
  a_.send(b_, a_.memory);
  ASSERT_TRUE(until([&] { return b_.delivered == 1; }));
  b_.send(a_, payload_);
  ASSERT_TRUE(until([&] { return a_.delivered == 1; }));
  EXPECT_EQ(a_.memory, payload_);
  b_.send(a_, payload_, RailFrame::carry);  // never lies there
  a_.send(b_, payload_);
  ASSERT_TRUE(until([&] { return !a_.carried.empty() && b_.delivered == 2; }));
  EXPECT_EQ(a_.carried, payload_);
  ASSERT_EQ(noted.sends.size(), 4u);
  const std::vector<bool> rendezvous{true, true, false, false}, named{true, false, false, false};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(noted.sends[i].rendezvous, rendezvous[i]) << i;
    EXPECT_EQ(noted.sends[i].named, named[i]) << i;
    EXPECT_EQ(noted.sends[i].type, UCS_MEMORY_TYPE_HOST) << i;
  }
}

TEST_F(UcxMemoryTest, WhatArrivedThereCountsOnceItHasBeenReadBack) {
  b_.use_memory();
  EXPECT_EQ(noted.readings, 1) << "tried at once";
  b_.into_memory = true;
  connect();
  noted.holds_readings = true;
  a_.send(b_, payload_);
  ASSERT_TRUE(until([] { return noted.readings == 2; }));
  a_.send(b_, payload_);  // arrives while the first is being read
  progress();
  EXPECT_EQ(noted.readings, 2) << "one at a time";
  EXPECT_EQ(b_.delivered, 0);
  noted.read(&held_request, UCS_OK, noted.reader);
  EXPECT_EQ(b_.delivered, 1);
  ASSERT_TRUE(until([] { return noted.readings == 3; }));
  noted.read(&held_request, UCS_OK, noted.reader);
  EXPECT_EQ(b_.delivered, 2);
  EXPECT_EQ(b_.refused, 0);
}

TEST_F(UcxMemoryTest, WhatCouldNotBeReadBackHasNotArrivedAndTheNextReadingHasAFreshEndpoint) {
  b_.use_memory();
  b_.into_memory = true;
  connect();
  noted.holds_readings = true;
  a_.send(b_, payload_);
  ASSERT_TRUE(until([] { return noted.readings == 2; }));
  noted.read(&held_request, UCS_ERR_IO_ERROR, noted.reader);
  EXPECT_EQ(b_.refused, 1);
  noted.holds_readings = false;
  const int endpoints = noted.endpoints;
  a_.send(b_, payload_);
  EXPECT_TRUE(until([&] { return b_.delivered == 1; }));
  EXPECT_EQ(noted.endpoints, endpoints + 1);
}

TEST_F(UcxMemoryTest, EagerDataForItIsNotTaken) {
  b_.use_memory();
  b_.into_memory = true;
  std::vector<std::byte> address = b_.transport().address();
  ASSERT_EQ(address[0], std::byte{1});
  address[0] = std::byte{0};
  a_.transport().connect(1, address);
  a_.send(b_, payload_);
  EXPECT_TRUE(until([&] { return b_.refused == 1; }));
  EXPECT_EQ(b_.memory, std::vector<std::byte>(kPiece));
}

std::string refusal(engine::Transport& transport, std::span<std::byte> memory, MemoryKind kind) {
  try {
    transport.use_memory(memory, kind);
  } catch (const TransportError& error) {
    return error.what();
  }
  return {};
}
constexpr std::size_t kWithoutKeys = 9;  // a map of domains and a kind of memory

TEST_F(UcxMemoryTest, WhatUcxOrTheNicDoesNotReachIsRefused) {
  engine::UcxOptions with_cuda;
  with_cuda.cuda = true;
  const auto asked = engine::make_ucx_transport(library_, "lo", with_cuda);
  for (engine::Transport* transport : {&a_.transport(), asked.get()})
    EXPECT_NE(refusal(*transport, a_.memory, MemoryKind::cuda).find("knows no memory of GPUs"), std::string::npos);
  noted.lists_cuda = true;
  noted.mapped = UCS_ERR_IO_ERROR;
  EXPECT_NE(refusal(a_.transport(), a_.memory, MemoryKind::cuda).find("registering memory"), std::string::npos);
  noted.mapped = UCS_OK;
  noted.key.assign(kWithoutKeys, std::byte{0});
  EXPECT_NE(refusal(a_.transport(), a_.memory, MemoryKind::cuda).find("could not register"), std::string::npos);
  EXPECT_EQ(a_.transport().address()[0], std::byte{0}) << "peers send as before";
}

TEST(PackedKeys, HaveANicsPartWhenADomainHasAKey) {
  const auto packed = [](std::uint64_t domains, std::vector<std::uint8_t> rest) {
    std::vector<std::byte> bytes(sizeof domains);
    std::memcpy(bytes.data(), &domains, sizeof domains);
    bytes.push_back(std::byte{UCS_MEMORY_TYPE_CUDA});
    for (const std::uint8_t byte : rest) bytes.push_back(std::byte{byte});
    return engine::has_key(bytes);
  };
  EXPECT_FALSE(packed(0, {}));
  EXPECT_FALSE(packed(1, {0, 255}));         // cuda_copy alone
  EXPECT_FALSE(packed(1, {0, 5, 1, 2, 3}));  // and how far it is from the devices
  EXPECT_TRUE(packed(1, {4, 1, 2, 3, 4}));
  EXPECT_TRUE(packed(5, {0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 255}));
  EXPECT_FALSE(packed(3, {0}));  // cut short
  EXPECT_FALSE(engine::has_key({}));
}

}  // namespace
}  // namespace railweave::test
