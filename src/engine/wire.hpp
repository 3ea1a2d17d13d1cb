// Bytes of control frames and bootstrap records: little-endian PODs one after the other. The reader checks every bound; after a
// failed read it gives zeros and ok() is false, so callers check once at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace railweave::engine {

class ByteWriter {
 public:
  template <typename T>
  ByteWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  ByteWriter& text(std::string_view value) {
    put(static_cast<std::uint32_t>(value.size()));
    const auto at = bytes_.size();
    bytes_.resize(at + value.size());
    if (!value.empty()) std::memcpy(bytes_.data() + at, value.data(), value.size());
    return *this;
  }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (!take(sizeof value)) return value;
    std::memcpy(&value, bytes_.data() + at_ - sizeof value, sizeof value);
    return value;
  }
  std::string text() {
    const auto size = get<std::uint32_t>();
    if (!take(size)) return {};
    std::string value(size, '\0');
    if (size != 0) std::memcpy(value.data(), bytes_.data() + at_ - size, size);
    return value;
  }
  std::span<const std::byte> rest() const { return bytes_.subspan(at_); }
  bool ok() const noexcept { return ok_; }

 private:
  bool take(std::size_t size) {
    if (!ok_ || size > bytes_.size() - at_) {
      ok_ = false;
      return false;
    }
    at_ += size;
    return true;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace railweave::engine
