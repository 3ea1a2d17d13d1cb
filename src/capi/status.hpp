// What the C ABIs make of exceptions: a code, and the text and rank of the thread's last error.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "railweave/engine/error.hpp"
#include "railweave/railweave.h"
#include "thread_own.hpp"

namespace railweave::capi {

struct LastError {
  std::string text = "no error";
  std::uint32_t rank = 0;  // of the last RAILWEAVE_ERROR_RANK_DIED
};
inline LastError& last_error() { return thread_own<LastError>(); }

// Where there is no memory for the text either, a short one takes its place.
inline railweave_status note(railweave_status status, std::string_view text, std::uint32_t rank = 0) noexcept {
  try {
    LastError& last = last_error();
    if (status == RAILWEAVE_ERROR_RANK_DIED) last.rank = rank;
    last.text = "out of memory";
    last.text = text;
  } catch (const std::bad_alloc&) {
    // The status tells it, too.
  }
  return status;
}

template <typename Call>
railweave_status guarded(Call&& call) noexcept {
  try {
    call();
    return RAILWEAVE_OK;
  } catch (const RankDied& error) {
    return note(RAILWEAVE_ERROR_RANK_DIED, error.what(), error.rank());
  } catch (const SettingsError& error) {
    return note(RAILWEAVE_ERROR_SETTINGS, error.what());
  } catch (const BootstrapError& error) {
    return note(RAILWEAVE_ERROR_BOOTSTRAP, error.what());
  } catch (const TransportError& error) {
    return note(RAILWEAVE_ERROR_TRANSPORT, error.what());
  } catch (const ExchangeError& error) {
    return note(RAILWEAVE_ERROR_EXCHANGE, error.what());
  } catch (const Error& error) {
    return note(RAILWEAVE_ERROR_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return note(RAILWEAVE_ERROR_INTERNAL, error.what());
  }
}

inline void require(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(std::string(name) + " is NULL");
}

}  // namespace railweave::capi
