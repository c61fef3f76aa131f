// examples/decode_job.hpp: decodes held-out prompts plainly and speculatively, and reports.
#pragma once
#include <algorithm>
#include <cstdio>
#include <set>

#include "target_job.hpp"

namespace example {

using namespace samite;

struct decode_settings {
  std::string text = "examples/data/austen.txt", target = "examples/data/target", drafter = "build/drafter";
  device on = device::cpu();
  dtype used = f32;
  index_t prompts = 20, prompt_bytes = 64, new_tokens = 128;
  std::uint64_t seed = 3;
  bool show = true;
};

struct decode_report {
  index_t prompts = 0, identical = 0, loops = 0, block_size = 0;  // loops: greedy outputs with under 30 % distinct 4-grams
  double acceptance = 0, acceptance_t1 = 0;                       // over outputs that don't loop
  double draft_ms = 0, verify_ms = 0, plain_ms = 0;  // of one round, one round, one plain forward
  double distinct_4gram = 0, tokens_per_forward = 0, plain_tokens_per_s = 0, speculative_tokens_per_s = 0;
  std::vector<std::string> differences;                           // first difference and its margin, one a prompt that differs
};

inline double distinct_4grams(std::span<const std::int32_t> tokens) {
  std::set<std::vector<std::int32_t>> seen;
  index_t count = 0;
  for (std::size_t i = 0; i + 4 <= tokens.size(); ++i, ++count) seen.insert({tokens.begin() + std::ptrdiff_t(i), tokens.begin() + std::ptrdiff_t(i) + 4});
  return count == 0 ? 0 : double(seen.size()) / double(count);
}

/// Raises E-MODEL-PAIR unless the drafter was trained for a target of these sizes.
inline void check_pair(const drafter_config& drafter, const decoder_config& target, const decode_settings& s) {
  const auto check = [&](const char* what, index_t wanted, index_t found) {
    if (wanted != found)
      raise("E-MODEL-PAIR", "the drafter in \"", s.drafter, "\" was trained for a target of ", what, " ", wanted, " but the target in \"", s.target, "\" has ", found,
            "; give the --target that it was trained with, or train a drafter for this one");
  };
  check("hidden size", drafter.target_hidden, target.sizes.hidden);
  check("hidden size", drafter.sizes.hidden, target.sizes.hidden);  // the drafter reads the target's embedding and head
  check("vocabulary", drafter.vocab_size, target.vocab_size);
  check("layer count", drafter.num_target_layers, target.layers);
}

/// Decodes held-out prompts plainly and speculatively and compares.
inline decode_report speculate(const decode_settings& s) {
  const byte_corpus corpus = load_corpus(s.text, s.prompt_bytes);
  const loaded_target target = load_target(s.target);
  const drafter_config c = read_drafter_config(read_json(s.drafter + "/config.json"), s.drafter + "/config.json");
  check_pair(c, target.config, s);
  graph shapes;
  declare_drafter(shapes, c, f32, f32);
  weight_map draft_weights = to_dtype(load_weights(s.drafter, parameter_shapes(shapes), f32), s.used);
  for (const auto& [name, t] : frozen_target_io(target, s.used)) draft_weights[name] = t;

  const index_t capacity = s.prompt_bytes + s.new_tokens + c.block_size;
  target_session session(target.config, on_device(to_dtype(target.weights, s.used), s.on), s.on, s.used, {.capacity = capacity, .taps = c.target_layer_ids});
  drafter_session draft(c, on_device(draft_weights, s.on), s.on, s.used, {.capacity = capacity});

  decode_report report;
  report.block_size = c.block_size;
  const auto prompts = choose_windows(corpus.held_out(), s.prompts + 1, s.prompt_bytes, s.seed, 0);
  double rounds = 0, produced = 0, rounds_t1 = 0, produced_t1 = 0, plain_seconds = 0, speculative_seconds = 0, plain_tokens = 0, speculative_tokens = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    beat("decode", std::int64_t(i));
    const std::vector<std::int32_t> prompt(prompts[i].begin(), prompts[i].end());
    const generation_options greedy{.new_tokens = s.new_tokens, .seed = s.seed, .sample = std::uint32_t(i)};
    session.crop(0);
    const generation plain = generate_plain(session, prompt, greedy);
    session.crop(0);
    const generation fast = generate_speculative(session, draft, prompt, greedy);
    if (i == 0) continue;  // the first prompt warms caches and kernels up
    session.crop(0);
    generation_options warm = greedy;
    warm.temperature = 1;
    const generation sampled = generate_speculative(session, draft, prompt, warm);

    ++report.prompts;
    if (plain.ids == fast.ids) ++report.identical;
    else {
      std::size_t at = 0;
      while (at < plain.ids.size() && at < fast.ids.size() && plain.ids[at] == fast.ids[at]) ++at;
      const std::size_t choice = at - prompt.size();
      report.differences.push_back(concat_text("prompt ", i, ": first difference at new token ", choice, ", top-2 margin of plain decoding ", choice < plain.margins.size() ? plain.margins[choice] : -1.0f));
    }
    const std::span<const std::int32_t> output = std::span(fast.ids).subspan(prompt.size()), output_t1 = std::span(sampled.ids).subspan(prompt.size());
    const double distinct = distinct_4grams(output);
    report.distinct_4gram += distinct;
    if (distinct < 0.3) ++report.loops;
    else
      for (index_t n : fast.produced) rounds += 1, produced += double(n);
    if (distinct_4grams(output_t1) >= 0.3)
      for (index_t n : sampled.produced) rounds_t1 += 1, produced_t1 += double(n);
    report.draft_ms += 1e3 * fast.draft_seconds / double(std::max<index_t>(1, fast.target_forwards)), report.verify_ms += 1e3 * fast.verify_seconds / double(std::max<index_t>(1, fast.target_forwards));
    report.plain_ms += 1e3 * plain.seconds / double(std::max<index_t>(1, plain.target_forwards));
    plain_seconds += plain.seconds, speculative_seconds += fast.seconds;
    plain_tokens += double(plain.new_tokens()), speculative_tokens += double(fast.new_tokens());
    report.tokens_per_forward += double(fast.new_tokens()) / double(std::max<index_t>(1, fast.target_forwards));
    if (s.show && i <= 2)
      std::printf("--- prompt %zu ---\n%s\n--- greedy continuation (%.2f tokens a round) ---\n%s\n--- sampled at temperature 1 (%.2f) ---\n%s\n", i, printable(prompt).c_str(), fast.acceptance_length(),
                  printable(output).c_str(), sampled.acceptance_length(), printable(output_t1).c_str());
  }
  std::fputs((session.profile() + draft.profile()).c_str(), stdout);
  const double n = double(std::max<index_t>(1, report.prompts));
  report.acceptance = rounds > 0 ? produced / rounds : 0, report.acceptance_t1 = rounds_t1 > 0 ? produced_t1 / rounds_t1 : 0;
  report.draft_ms /= n, report.verify_ms /= n, report.plain_ms /= n;
  report.distinct_4gram /= n, report.tokens_per_forward /= n;
  report.plain_tokens_per_s = plain_tokens / std::max(1e-9, plain_seconds), report.speculative_tokens_per_s = speculative_tokens / std::max(1e-9, speculative_seconds);
  return report;
}

/// Prints one line of a report; the values of all lines begin in one column.
inline void print_line(const std::string& name, const std::string& values) { std::printf("%-36s%s\n", name.c_str(), values.c_str()); }

/// A number with a fixed count of digits after the point.
inline std::string fixed(double x, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

inline void print_report(const decode_report& r) {
  print_line(concat_text("acceptance length (1 to ", r.block_size, ")"), concat_text("greedy ", fixed(r.acceptance, 3), ", temperature 1 ", fixed(r.acceptance_t1, 3)));
  print_line("distinct 4-grams in greedy outputs", concat_text(fixed(r.distinct_4gram, 3), "  (", r.loops, " of ", r.prompts, " outputs are below 0.3 and left out of the acceptance lengths)"));
  print_line("tokens per target forward", fixed(r.tokens_per_forward, 3));
  print_line("tokens per second", concat_text("plain ", fixed(r.plain_tokens_per_s, 1), ", speculative ", fixed(r.speculative_tokens_per_s, 1), ": ",
                                              fixed(r.speculative_tokens_per_s / std::max(1e-9, r.plain_tokens_per_s), 2), " times"));
  print_line("milliseconds", concat_text("plain forward ", fixed(r.plain_ms, 3), "; a round: drafting ", fixed(r.draft_ms, 3), ", verification ", fixed(r.verify_ms, 3)));
  print_line("greedy output equals plain greedy", concat_text(r.identical, " of ", r.prompts, " prompts"));
  for (const std::string& line : r.differences) std::printf("  %s\n", line.c_str());
}

}  // namespace example
