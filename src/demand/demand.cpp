#include "railweave/demand/demand.hpp"

#include <algorithm>
#include <charconv>

#include "railweave/error.hpp"

namespace railweave {
namespace {

constexpr std::uint64_t kLimit = std::uint64_t{1} << 63;

bool is_separator(char c) noexcept { return c == ' ' || c == '\t' || c == ',' || c == '\r'; }

}  // namespace

void Demand::set(GpuId src, GpuId dst, std::uint64_t bytes) {
  if (src >= ranks_ || dst >= ranks_) {
    throw DemandError("demand " + std::to_string(src) + " -> " + std::to_string(dst) + " in a matrix of " + std::to_string(ranks_) +
                      " ranks");
  }
  std::uint64_t& entry = bytes_[std::size_t{src} * ranks_ + dst];
  const std::uint64_t others = total_ - entry;
  if (bytes >= kLimit || others >= kLimit - bytes) {
    throw DemandError("demand " + std::to_string(src) + " -> " + std::to_string(dst) + ": with " + std::to_string(bytes) +
                      " bytes the total would reach 2^63");
  }
  entry = bytes;
  total_ = others + bytes;
}

double Demand::skew() const noexcept {
  if (ranks_ == 0 || total_ == 0) return 0;
  std::uint64_t busiest = 0;
  double sum = 0;
  for (GpuId r = 0; r < ranks_; ++r) {
    std::uint64_t sent = 0, received = 0;
    for (GpuId p = 0; p < ranks_; ++p) {
      if (p == r) continue;  // crosses no link
      sent += at(r, p);
      received += at(p, r);
    }
    busiest = std::max({busiest, sent, received});
    sum += static_cast<double>(std::max(sent, received));
  }
  return sum == 0 ? 0 : static_cast<double>(busiest) / (sum / ranks_);
}

Demand parse_demand(std::string_view text, const std::string& source) {
  // nccl-tests reads at most a few thousand ranks; the cap keeps a hostile file from asking for 8 n^2 bytes.
  constexpr std::size_t kMaxRanks = 16384;
  std::vector<std::vector<std::uint64_t>> rows;
  std::vector<std::size_t> row_line;
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    ++line_number;
    const std::size_t newline = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, newline - begin);
    begin = newline + 1;
    line = line.substr(0, std::min(line.find('#'), line.size()));
    std::vector<std::uint64_t> row;
    for (std::size_t i = 0; i < line.size();) {
      if (is_separator(line[i])) {
        ++i;
        continue;
      }
      std::size_t end = i;
      while (end < line.size() && !is_separator(line[end])) ++end;
      std::uint64_t value = 0;
      const auto [stop, problem] = std::from_chars(line.data() + i, line.data() + end, value);
      if (problem != std::errc{} || stop != line.data() + end || value >= kLimit) {
        throw ParseError({source, line_number, i + 1, ""}, "'" + std::string(line.substr(i, std::min<std::size_t>(end - i, 40))) + "'",
                         "a number of bytes from 0 to 2^63 - 1");
      }
      row.push_back(value);
      i = end;
      if (row.size() > kMaxRanks) throw ParseError({source, line_number, i, ""}, "a row of more than 16384 entries", "at most 16384 ranks");
    }
    if (row.empty()) continue;
    if (!rows.empty() && row.size() != rows.front().size()) {
      throw ParseError({source, line_number, 0, ""}, "a row of " + std::to_string(row.size()) + " entries",
                       std::to_string(rows.front().size()) + " as in line " + std::to_string(row_line.front()));
    }
    if (rows.size() == row.size()) {
      throw ParseError({source, line_number, 0, ""}, "row " + std::to_string(rows.size() + 1),
                       "a square matrix of " + std::to_string(row.size()) + " rows");
    }
    rows.push_back(std::move(row));
    row_line.push_back(line_number);
  }
  if (rows.empty()) throw ParseError({source, 0, 0, ""}, "no rows", "one row of bytes for each sending rank");
  if (rows.size() != rows.front().size()) {
    throw ParseError({source, line_number, 0, ""},
                     std::to_string(rows.size()) + " rows of " + std::to_string(rows.front().size()) + " entries", "a square matrix");
  }
  Demand demand(static_cast<std::uint32_t>(rows.size()));
  for (std::size_t src = 0; src < rows.size(); ++src) {
    for (std::size_t dst = 0; dst < rows.size(); ++dst) {
      try {
        demand.set(static_cast<GpuId>(src), static_cast<GpuId>(dst), rows[src][dst]);
      } catch (const DemandError& error) {
        throw ParseError({source, row_line[src], 0, ""}, error.what(), "a total below 2^63 bytes");
      }
    }
  }
  return demand;
}

std::string format_demand(const Demand& demand) {
  std::string text;
  for (GpuId src = 0; src < demand.ranks(); ++src) {
    for (GpuId dst = 0; dst < demand.ranks(); ++dst) {
      if (dst != 0) text += ' ';
      text += std::to_string(demand.at(src, dst));
    }
    text += '\n';
  }
  return text;
}

void check_fits(const Demand& demand, const Fabric& fabric) {
  if (demand.ranks() == fabric.gpu_count()) return;
  throw DemandError("the matrix has " + std::to_string(demand.ranks()) + " ranks, fabric '" + std::string(fabric.name()) + "' has " +
                    std::to_string(fabric.gpu_count()) + " GPUs; give one row for each GPU");
}

}  // namespace railweave
