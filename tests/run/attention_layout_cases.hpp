// tests/run/attention_layout_cases.hpp: more faults of other libraries: parts and pages, strides, capacities, sizes and dtypes.
// Included after attention_cases.hpp, for the same device.
#pragma once
#include <samite/nn/attention_parts.hpp>
#include <samite/run/cpu_backend.hpp>
#include <samite/score/bias.hpp>

namespace {

tensor random_rows(index_t heads, index_t rows, index_t width, std::uint32_t purpose, dtype type = f32) { return random_tensor(type, {1, heads, rows, width}, purpose); }

void check_same_bits(const case_result& a, const case_result& b) {
  CHECK(a.out == b.out);
  CHECK(a.lse == b.lse);
  CHECK(a.dQ == b.dQ);
  CHECK(a.dK == b.dK);
  CHECK(a.dV == b.dV);
}

// A mask that keeps what `mask` keeps and whose full tiles bounds can't tell.
any_mask forced_undecided(const any_mask& mask) {
  const auto mixed = 7 * q + 5 * kv;
  return any_mask(mask && mixed % 3 != (mixed + 1) % 3);
}

}  // namespace

TEST_CASE("A3: merging parts of the keys: empty parts change nothing, two empty parts stay empty, halves make the whole") {
  CASE_NEEDS;
  const index_t S = 70, D = 8;
  const auto merged = [&](const any_mask& first, const any_mask& second) {
    graph g;
    const value Q = g.input("Q", f32, {1, 2, S, D}), K = g.input("K", f32, {1, 2, S, D}), V = g.input("V", f32, {1, 2, S, D});
    const attention_result a = attention(Q, K, V, {.mask = first}), b = attention(Q, K, V, {.mask = second}), both = merge_attention(a, b);
    const std::vector<value> gradients = gradient(total(let(both.out * both.out)), {Q, K, V});
    g.output("a", contiguous(a.out)), g.output("a_lse", a.lse), g.output("out", contiguous(both.out)), g.output("lse", both.lse);
    const char* names[] = {"dQ", "dK", "dV"};
    for (std::size_t i = 0; i < 3; ++i) g.output(names[i], contiguous(gradients[i]));
    return run_on(g, CASE_DEVICE, {{"Q", random_rows(2, S, D, 1)}, {"K", random_rows(2, S, D, 2)}, {"V", random_rows(2, S, D, 3)}});
  };
  const named_numbers kept = merged(causal(), none()), empty = merged(none(), none());
  CHECK(kept.at("out") == kept.at("a"));
  CHECK(kept.at("lse") == kept.at("a_lse"));
  for (double x : empty.at("out")) CHECK(x == 0);
  for (double x : empty.at("lse")) CHECK(x == hidden);
  for (const char* name : {"dQ", "dK", "dV"})
    for (double x : empty.at(name)) CHECK(x == 0);
  const named_numbers halves = merged(causal() && kv < 33, causal() && kv >= 33), whole = merged(causal(), none());
  for (const char* name : {"out", "lse", "dQ", "dK", "dV"}) check_values(halves.at(name), whole.at(name), 2e-5);
}

TEST_CASE("B4: a table that ends with the keys is not read behind its end") {
  CASE_NEEDS;
  const index_t S = 2046;
  std::vector<index_t> ids, longer;
  for (index_t i = 0; i < 4096; ++i) longer.push_back(i < S ? i / 300 : (i * 13) % 7);
  ids.assign(longer.begin(), longer.begin() + S);
  check_same_bits(probe(document_causal(table(ids)), S, S), probe(document_causal(table(longer)), S, S));
}

TEST_CASE("B12: paged keys and values equal contiguous ones, and pages that are not listed are not read") {
  CASE_NEEDS;
  const index_t D = 16, pages = 9;
  for (const index_t page : {64, 16})
    for (const dtype type : {f32, bf16}) {
      CAPTURE(name_of(type));
      const index_t S = 2 * page + 5, used = 3;
      tensor K(f32, {pages, page, 2, D}), V(f32, {pages, page, 2, D}), plain_k(f32, {1, 2, S, D}), plain_v(f32, {1, 2, S, D});
      for (tensor* t : {&K, &V}) std::fill_n(t->data<float>(), t->elements(), std::numeric_limits<float>::quiet_NaN());
      const std::vector<std::int32_t> ids{7, 2, 5};
      counted_random random(3, 1);
      for (index_t s = 0; s < S; ++s)
        for (index_t g = 0; g < 2; ++g)
          for (index_t c = 0; c < D; ++c) {
            const index_t in_pages = ((ids[std::size_t(s / page)] * page + s % page) * 2 + g) * D + c, plain = (g * S + s) * D + c;
            K.data<float>()[in_pages] = plain_k.data<float>()[plain] = float(random.normal());
            V.data<float>()[in_pages] = plain_v.data<float>()[plain] = float(random.normal());
          }
      const tensor Q = random_rows(4, 3, D, 1, type);
      graph g;
      const value k_pages = g.input("K", type, {pages, page, 2, D}), v_pages = g.input("V", type, {pages, page, 2, D}), table_of_pages = g.input("ids", i32, {1, used});
      const auto rows = [&](const value& x) { return slice(paged_rows(x, table_of_pages), 2, 0, S); };
      g.output("out", contiguous(attention(g.input("Q", type, {1, 4, 3, D}), rows(k_pages), rows(v_pages), {.mask = causal_bottom_right(3, S)}).out));
      const named_numbers r = run_on(g, CASE_DEVICE, {{"Q", Q}, {"K", K.to_dtype(type)}, {"V", V.to_dtype(type)}, {"ids", tensor::from<std::int32_t>(i32, {1, used}, ids)}});
      const case_result contiguous_rows = attend(causal_bottom_right(3, S), Q, plain_k.to_dtype(type), plain_v.to_dtype(type), random_rows(4, 3, D, 4, type));
      CHECK(r.at("out") == contiguous_rows.out);
      for (const double x : contiguous_rows.out) CHECK(std::isfinite(x));
    }
}

TEST_CASE("D4: one predicate says which tiles exist and which pairs count: an update of its table changes both at the next step") {
  CASE_NEEDS;
  const index_t S = 200;
  std::vector<index_t> first(std::size_t(S), 0), second;
  for (index_t i = 0; i < S; ++i) second.push_back(i / 70);
  auto docs = table(first);
  const any_mask mask = document(docs);
  check_values({probe(mask, S, S).lse[0]}, {log_of(200)});
  docs.update(second);
  const case_result r = probe(mask, S, S);
  check_values({r.lse[0], r.lse[199]}, {log_of(70), log_of(60)});
  check_random(mask, {.queries = S, .keys = S, .head_dim = 8, .value_dim = 8});
}

TEST_CASE("D11: lengths beyond 65536") {
  CASE_NEEDS;
  for (const index_t S : {index_t(65537), index_t(93696)}) {
    graph g;
    const index_t D = 16;
    const tensor Q = random_rows(1, S, D, 1), K = random_rows(1, S, D, 2), V = random_rows(1, S, D, 3);
    g.output("out", contiguous(attention(g.input("Q", f32, {1, 1, S, D}), g.input("K", f32, {1, 1, S, D}), g.input("V", f32, {1, 1, S, D}), {.mask = window(128)}).out));
    const named_numbers r = run_on(g, CASE_DEVICE, {{"Q", Q}, {"K", K}, {"V", V}});
    const std::vector<double> q_values = numbers(Q), k_values = numbers(K), v_values = numbers(V);
    for (index_t sample = 0; sample < 64; ++sample) {
      const index_t row = sample == 63 ? S - 1 : sample * (S / 64);
      double sum = 0;
      std::vector<double> out(std::size_t(D), 0.0);
      for (index_t key = std::max<index_t>(0, row - 127); key <= row; ++key) {
        double score = 0;
        for (index_t c = 0; c < D; ++c) score += q_values[std::size_t(row * D + c)] * k_values[std::size_t(key * D + c)];
        const double weight = std::exp(score / 4);
        sum += weight;
        for (index_t c = 0; c < D; ++c) out[std::size_t(c)] += weight * v_values[std::size_t(key * D + c)];
      }
      for (index_t c = 0; c < D; ++c) CHECK(std::abs(r.at("out")[std::size_t(row * D + c)] - out[std::size_t(c)] / sum) < 1e-5);
    }
  }
}

TEST_CASE("F1, F3, F7: slices, odd strides and shared heads equal their copies") {
  CASE_NEEDS;
  const index_t S = 100, D = 64;
  const tensor wide = random_tensor(f32, {1, 2, S + 28, D + 1}, 2), Q = random_rows(2, S, D, 1), d_out = random_rows(2, S, D, 4);
  // Rows 0 .. S-1 of S + 28, columns 1 .. D of D + 1: an offset of one element, and rows of 65.
  tensor copy(f32, {1, 2, S, D});
  for (index_t h = 0; h < 2; ++h)
    for (index_t s = 0; s < S; ++s) std::copy_n(wide.data<float>() + (h * (S + 28) + s) * (D + 1) + 1, D, copy.data<float>() + (h * S + s) * D);
  const case_result expected = attend(causal(), Q, copy, copy, d_out);
  graph g;
  const value x = g.input("x", f32, {1, 2, S + 28, D + 1}), q_in = g.input("Q", f32, {1, 2, S, D}), d_in = g.input("d", f32, {1, 2, S, D});
  const value part = slice(slice(x, 2, 0, S), 3, 1, D);
  const attention_result a = attention(q_in, part, part, {.mask = causal()});
  const std::vector<value> gradients = gradient(total(let(a.out * d_in)), {q_in, part});
  g.output("out", contiguous(a.out)), g.output("dQ", contiguous(gradients[0])), g.output("dx", contiguous(gradients[1]));
  named_numbers r = run_on(g, CASE_DEVICE, {{"x", wide}, {"Q", Q}, {"d", d_out}});
  CHECK(r["out"] == expected.out);
  CHECK(r["dQ"] == expected.dQ);
  for (std::size_t i = 0; i < r["dx"].size(); ++i) CHECK(std::abs(r["dx"][i] - (expected.dK[i] + expected.dV[i])) < 1e-5);

  // One key head for four query heads reads the same numbers as four copies of it.
  const tensor one = random_rows(1, S, D, 5), queries = random_rows(4, S, D, 6), d = random_rows(4, S, D, 7);
  tensor four(f32, {1, 4, S, D});
  for (index_t h = 0; h < 4; ++h) std::copy_n(one.data<float>(), S * D, four.data<float>() + h * S * D);
  const case_result shared = attend(causal(), queries, one, one, d), copied = attend(causal(), queries, four, four, d);
  CHECK(shared.out == copied.out);
  CHECK(shared.dQ == copied.dQ);
}

TEST_CASE("G5: a bias of another dtype than the queries is read as what it is") {
  CASE_NEEDS;
  const index_t S = 32, D = 16;
  const tensor bias = random_tensor(f32, {2, S, S}, 9, -3, 3);
  const auto out_of = [&](dtype type) {
    graph g;
    const value Q = g.input("Q", type, {1, 2, S, D}), K = g.input("K", type, {1, 2, S, D}), V = g.input("V", type, {1, 2, S, D}), B = g.input("bias", f32, {2, S, S});
    g.output("out", contiguous(attention(Q, K, V, {.mask = causal(), .score = score + table(B)(h, q, kv)}).out));
    const auto rounded = [&](std::uint32_t purpose) { return random_rows(2, S, D, purpose, f16).to_dtype(type); };
    return run_on(g, CASE_DEVICE, {{"Q", rounded(1)}, {"K", rounded(2)}, {"V", rounded(3)}, {"bias", bias}}).at("out");
  };
  CHECK(testing::difference(out_of(f16), out_of(f32), testing::tolerance_of(f16, S)) == "");
}

TEST_CASE("G7: a wide head and a window, backward in bf16") {
  CASE_NEEDS;
  const index_t S = 2048, D = 256;
  const any_mask mask = causal() && window(512);
  const auto run = [&](dtype type) {
    const auto rounded = [&](std::uint32_t purpose) { return random_rows(1, S, D, purpose, bf16).to_dtype(type); };
    return attend(mask, rounded(1), rounded(2), rounded(3), rounded(4));
  };
  const case_result narrow = run(bf16), wide = run(f32);
  for (const auto& [found, expected] : {std::pair(&narrow.out, &wide.out), std::pair(&narrow.dQ, &wide.dQ), std::pair(&narrow.dK, &wide.dK), std::pair(&narrow.dV, &wide.dV)})
    CHECK(testing::difference(*found, *expected, testing::tolerance_of(bf16, 512, 2)) == "");
}

TEST_CASE("I11: block-causal steps of growing images at an odd length leave out what they hide") {
  CASE_NEEDS;
  std::vector<index_t> step;
  for (const index_t side : {1, 2, 3, 4, 6, 8, 12, 16}) step.insert(step.end(), std::size_t(side * side), side);
  step.resize(521);
  const auto steps = table(step);
  const any_mask mask = steps[kv] <= steps[q];
  check_random(mask, {.queries = 521, .keys = 521, .head_dim = 72, .value_dim = 72});
  const tile_options sizes{.Q = 521, .K = 521, .tile_q = 64, .tile_k = 64};
  CHECK(tile_map(mask, sizes).counts().empty >= 10);
}

TEST_CASE("J2: whether a tile is known to be full changes no bit") {
  CASE_NEEDS;
  const tensor Q = random_rows(4, 330, 32, 1), d = random_rows(4, 330, 32, 4), K = random_rows(2, 330, 32, 2), V = random_rows(2, 330, 32, 3);
  for (const any_mask& mask : {any_mask(causal()), any_mask(causal() && window(150)), any_mask(sink_window(4, 70))}) {
    const any_mask forced = forced_undecided(mask);
    const tile_options sizes{.Q = 330, .K = 330, .tile_q = 64, .tile_k = 64};
    REQUIRE(tile_map(forced, sizes).counts().full < tile_map(mask, sizes).counts().full + (tile_map(mask, sizes).counts().full == 0));
    check_same_bits(attend(mask, Q, K, V, d), attend(forced, Q, K, V, d));
  }
}

TEST_CASE("J2: a tile without a kept pair that is visited all the same changes no bit, and one that is skipped is not read") {
  CASE_NEEDS;
  const index_t S = 400;
  const tensor Q = random_rows(1, S, 16, 1), d = random_rows(1, S, 16, 4);
  tensor K = random_rows(1, S, 16, 2), V = random_rows(1, S, 16, 3);
  const auto never = (7 * q + 5 * kv) % 3 == (7 * q + 5 * kv + 1) % 3;  // which bounds can't tell
  const any_mask mask = kv < 64 || kv >= 256;
  const case_result skipped = attend(mask, Q, K, V, d);
  for (const any_mask& rows : {mask, any_mask(q < 64 || q >= 192)}) {
    const any_mask visited(rows || never);
    REQUIRE(tile_map(visited, {.Q = S, .K = S, .tile_q = 64, .tile_k = 64}).counts().empty == 0);
    check_same_bits(attend(rows, Q, K, V, d), attend(visited, Q, K, V, d));
  }
  for (tensor* t : {&K, &V}) std::fill_n(t->data<float>() + 64 * 16, 192 * 16, std::numeric_limits<float>::quiet_NaN());
  const case_result poisoned = attend(mask, Q, K, V, d);
  check_same_bits(skipped, poisoned);
}

TEST_CASE("J4: a length inside a larger capacity gives the same bits as the length alone") {
  CASE_NEEDS;
  const index_t S = 1000, D = 32;
  const auto run = [&](const dim& length) {
    graph g;
    const value Q = g.input("Q", f32, {1, 2, length, D}), K = g.input("K", f32, {1, 2, length, D}), V = g.input("V", f32, {1, 2, length, D});
    const value out = attention(Q, K, V, {.mask = causal() && window(300)}).out;
    const std::vector<value> gradients = gradient(total(let(out * out)), {Q, K, V});
    g.output("out", contiguous(out));
    const char* names[] = {"dQ", "dK", "dV"};
    for (std::size_t i = 0; i < 3; ++i) g.output(names[i], contiguous(gradients[i]));
    return run_on(g, CASE_DEVICE, {{"Q", random_rows(2, S, D, 1)}, {"K", random_rows(2, S, D, 2)}, {"V", random_rows(2, S, D, 3)}});
  };
  CHECK(run(dim(S)) == run(tokens(1024)));
}
