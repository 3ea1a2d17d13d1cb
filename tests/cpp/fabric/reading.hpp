// What tests of the parsers share: running one on a text and looking at the error.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "railweave/error.hpp"

namespace railweave {

// The error that `read` raises; fails the test when it raises none or another type.
template <class Read>
std::string parse_error(Read read) {
  try {
    read();
  } catch (const ParseError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a ParseError: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

// `text` with the first `from` replaced; the text must have it.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) {
    ADD_FAILURE() << "the text lacks '" << from << "'";
    return text;
  }
  return text.replace(at, from.size(), to);
}

}  // namespace railweave
