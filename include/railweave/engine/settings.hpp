// Settings of an exchange: one table from which code, environment variables, --help and docs/settings.md come.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "railweave/planner/plan.hpp"

namespace railweave {

struct ExchangeSettings {
  Policy policy = Policy::railweave;
  std::uint64_t chunk_bytes = 128u << 10;
  std::uint64_t multipath_min_bytes = 1u << 20;
  std::uint64_t eager_bytes = 64u << 10;
  std::uint64_t slots_per_writer = 24;
  std::uint64_t rx_slots = 64;
  std::uint64_t link_window = 8;
  std::uint64_t row_wait_us = 30000;
  std::uint64_t spin_us = 5;
  std::uint64_t heartbeat_ms = 100;
  std::uint64_t resend_ms = 200;
  std::uint64_t rail_timeout_ms = 1000;
  std::uint64_t reconnect_ms = 500;
  std::uint64_t lease_ms = 1500;
  std::uint64_t death_ms = 6000;
  std::uint64_t drain_ms = 5000;
  std::uint64_t bootstrap_ms = 60000;
  std::uint64_t gpu_blocks = 16;
  std::uint64_t gpu_low_latency_bytes = 1u << 20;
  bool gpu_low_latency_by_ranks = false;  // nobody said how many: more among few ranks (cuda::packets_up_to())
  std::uint64_t gpu_nodes = 0;
  std::uint64_t gpu_direct = 1;
  std::uint64_t gpu_timeout_ms = 1'800'000;
  std::uint64_t gpu_virtual_memory = 1;
  std::uint64_t gpu_staging_bytes = 48u << 20;
  std::uint64_t gpu_host_share = 0;
  std::uint64_t gpu_relays = 0;
  std::uint64_t gpu_pair_rate = 366'000;
  std::uint64_t gpu_block_rate = 38'600;
  bool gpu_rates_said = false;   // both of these, by anybody
  bool gpu_blocks_said = false;  // gpu_blocks, by a variable or in code, not by a calibration
  std::uint64_t gpu_emulated_mesh = 0;
  std::uint64_t checksum = 0;
  std::string node_id;
  std::string interfaces;
  std::string nics;
  std::string ucx_tls;
  std::string ucx_library;
  // Of what was asked for, the first that cannot be had; what was there before stayed. An exchange with a problem fails on all its ranks,
  // which hear of it at once: thrown where it is found, it would leave the others waiting.
  std::string problem;
};

struct Setting {
  std::string_view name;  // also the Python keyword; the environment variable is RAILWEAVE_ + upper case
  std::string_view unit;  // "bytes", "us", "ms", "slots", "transfers", or "" for text
  bool must_agree;        // all ranks must have the same value
  std::uint64_t minimum;  // numbers only
  std::uint64_t maximum;
  std::string_view help;
  std::string_view measured;  // what the default rests on
  std::variant<std::uint64_t ExchangeSettings::*, std::string ExchangeSettings::*, Policy ExchangeSettings::*> member;

  std::string environment() const;
  std::string get(const ExchangeSettings& settings) const;
  // Throws SettingsError naming the setting, the text, and what was expected. Byte counts take KiB, MiB, GiB suffixes.
  void set(ExchangeSettings& settings, std::string_view text) const;
};

std::span<const Setting> settings_table();
// `defaults`, overridden by the RAILWEAVE_* variables that are set. One that cannot be read is the settings' problem.
ExchangeSettings settings_from_environment(const ExchangeSettings& defaults = {});
// Sets what has that name. A name that is none, and a text that Setting::set() refuses, are the settings' problem.
void set(ExchangeSettings& settings, std::string_view name, std::string_view text);
// Throws the settings' problem, or the first number that is out of its range: SettingsError.
void check(const ExchangeSettings& settings);
// The rows of the table as docs/settings.md has them.
std::string settings_markdown();

}  // namespace railweave
