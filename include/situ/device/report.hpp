/// How profiles and logs are written: times, tables, lines of the program, JSON.
#pragma once

#include <string>
#include <vector>

#include <situ/device/observe.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

__attribute__((cold)) inline std::string time_text(int64_t nanoseconds) {
  char buffer[32];
  double const t = static_cast<double>(nanoseconds);
  if (t < 1e3) __builtin_snprintf(buffer, sizeof buffer, "%.0f ns", t);
  else if (t < 1e6) __builtin_snprintf(buffer, sizeof buffer, "%.2f us", t / 1e3);
  else if (t < 1e9) __builtin_snprintf(buffer, sizeof buffer, "%.2f ms", t / 1e6);
  else __builtin_snprintf(buffer, sizeof buffer, "%.2f s", t / 1e9);
  return buffer;
}

/// Nanoseconds as microseconds, -1500 as `-1.500`: for JSON, whatever the locale of the program is.
__attribute__((cold)) inline std::string microseconds_text(int64_t nanoseconds) {
  int64_t const whole = nanoseconds / 1000;
  int64_t const rest = nanoseconds < 0 ? -(nanoseconds % 1000) : nanoseconds % 1000;
  std::string const digits = std::to_string(1000 + rest);
  return (nanoseconds < 0 && whole == 0 ? "-" : "") + std::to_string(whole) + "." + digits.substr(1);
}

/// At most 16 columns as wide as their widest entries; the first `left` ones begin at the left.
template <class Row>
std::string table_text(std::vector<Row> const& rows, std::size_t left) {
  std::size_t widths[16] = {};
  for (auto const& row : rows) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      if (row[k].size() > widths[k]) widths[k] = row[k].size();
    }
  }
  std::string result;
  for (auto const& row : rows) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      std::string const space(widths[k] - row[k].size(), ' ');
      if (k > 0) result += "  ";
      result += k < left ? row[k] + (k + 1 < row.size() ? space : "") : space + row[k];
    }
    result += '\n';
  }
  return result;
}

inline void append_json(std::string& to, std::string const& text) {
  to += '"';
  for (char const c : text) {
    if (c == '"' || c == '\\') {
      to += '\\';
      to += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      __builtin_snprintf(buffer, sizeof buffer, "\\u%04x", c);
      to += buffer;
    } else {
      to += c;
    }
  }
  to += '"';
}

inline std::string site_text(CallSite const& site) {
  std::string result = site.operation ? site.operation : "";
  if (site.file && site.line > 0) {
    char const* file = site.file;
    for (char const* at = file; *at; ++at) {
      if (*at == '/') file = at + 1;
    }
    result += (result.empty() ? "" : " at ") + std::string(file) + ":" + std::to_string(site.line);
  }
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
