#include "railweave/error.hpp"

#include <gtest/gtest.h>

#include <string>

namespace railweave {
namespace {

TEST(Error, QuotesWhatCannotBeShownAsBytes) {
  const auto shown = [](const std::string& text) { return std::string(Error(text).what()); };
  EXPECT_EQ(shown("two\nlines, 4 × 8 µs, \xF0\x9F\x9A\x82"), "two\nlines, 4 × 8 µs, \xF0\x9F\x9A\x82");
  EXPECT_EQ(shown("\x1B[2J\r\t\x7F"), "\\x1b[2J\\x0d\\x09\\x7f") << "nothing that a terminal acts upon";
  EXPECT_EQ(shown("\xC2\x9B"
                  "2J \xC2\xA0"),
            "\\xc2\\x9b2J \xC2\xA0")
      << "nor its 8-bit forms";
  EXPECT_EQ(shown("\xFF\xC0\x80"), "\\xff\\xc0\\x80") << "bytes that are never UTF-8; an overlong NUL";
  EXPECT_EQ(shown("\xE2\x82"), "\\xe2\\x82") << "a character that was cut off";
  EXPECT_EQ(shown("\xE2\x82z"), "\\xe2\\x82z");
  EXPECT_EQ(shown("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(shown("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above U+10FFFF";
  EXPECT_EQ(shown("\xE0\x9F\xBF\xF0\x8F\xBF\xBF"), "\\xe0\\x9f\\xbf\\xf0\\x8f\\xbf\\xbf") << "overlong";
  EXPECT_EQ(shown(std::string("a\0b", 3)), "a\\x00b") << "what() does not end there";
}

TEST(Error, ParseErrorShowsBothNameAndFinding) {
  const ParseError error({"f\xFF", 3, 1, "a\x1B"}, "'\x80'", "text");
  EXPECT_STREQ(error.what(), "f\\xff:3:1: a\\x1b: '\\x80'; expected text");
  EXPECT_EQ(error.where().source, "f\xFF") << "for programs, as it was";
}

}  // namespace
}  // namespace railweave
