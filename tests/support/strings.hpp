/// Included in front of each test: messages show the text of a char const*, which doctest takes for a pointer.
#pragma once

#include <doctest/doctest.h>

template <>
struct doctest::StringMaker<char const*> {
  static String convert(char const* text) { return text ? String(text) : String("nullptr"); }
};
