// What the C ABIs make of exceptions: a code, and the text and rank of the thread's last error.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "railweave/engine/error.hpp"
#include "railweave/railweave.h"
#include "thread_own.hpp"

namespace railweave::capi {

struct LastError {
  std::string text = "no error";
  std::uint32_t rank = 0;  // of the last RAILWEAVE_ERROR_RANK_DIED
};
inline LastError& last_error() { return thread_own<LastError>(); }

inline railweave_status note(railweave_status status, const std::string& text) {
  last_error().text = text;
  return status;
}

template <typename Call>
railweave_status guarded(Call&& call) noexcept {
  try {
    call();
    return RAILWEAVE_OK;
  } catch (const RankDied& error) {
    last_error().rank = error.rank();
    return note(RAILWEAVE_ERROR_RANK_DIED, error.what());
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
