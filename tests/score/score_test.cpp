// Score functions through the whole library on the CPU: the cases, and gradients against central differences.
#define CASE_DEVICE device::cpu()
#define CASE_NEEDS static_cast<void>(0)
#include "score_cases.hpp"

TEST_CASE("gradients of score functions and captured tensors agree with central differences, grouped heads and tail tiles included") {
  probe::uneven = true;
  struct variant {
    const char* name;
    probe::score_of score;
    extents bias;
  };
  const index_t S = 67;  // more than one tile, and a tail
  const scalar width(5);
  const auto documents = table({0, 1, 2});
  const variant variants[] = {
      {"soft cap", [](const value&) { return any_score(softcap(1.5)); }, {0}},
      {"ALiBi, learned", [](const value& s) { return any_score(alibi(s)); }, {4}},
      {"soft cap and slopes", [](const value& s) { return any_score(30.f * tanh(score / 30.f) + table(s)[h] * (kv - q)); }, {4}},
      {"relative", [](const value& t) { return relative_bias(t, 6); }, {4, 13}},
      {"T5 buckets", [](const value& t) { return t5_bias(t, {.max_distance = 20}); }, {4, 12}},
      {"T5 buckets, causal", [](const value& t) { return t5_bias(t, {.max_distance = 20, .bidirectional = false}); }, {4, 12}},
      {"whole bias", [](const value& t) { return any_score(full_bias(t)); }, {2, 4, S, S}},
      {"temperature", [](const value&) { return any_score(temperature(0.3, 8)); }, {0}},
      {"temperature per row, learned", [](const value& t) { return any_score(score * table(t)[q]); }, {S}},
      {"forget gate", [](const value& c) { return any_score(score + table(c)(h, q) - table(c)(h, kv)); }, {4, S}},
      {"head gate", [](const value& t) { return any_score(score * table(t)[h]); }, {4}},
      {"batch and head", [](const value& t) { return any_score(score * exp(table(t)(b, h))); }, {2, 4}},
      {"pieces", [](const value& t) { return any_score(select(q - kv < 9, score, 0.5 * score + table(t)[kv % 3]) + select(score > 0.2, sin(score), cos(score))); }, {3}},
      {"through a table", [documents](const value& t) { return any_score(max(score, table(t)[documents[kv % 3]])); }, {3}},
      {"no score", [](const value& t) { return any_score(table(t)(h, q) * real(kv) * 0.01); }, {4, S}},
      {"captured width", [width](const value&) { return any_score(score - 0.1 * abs(real(q - kv) - real(width))); }, {0}},
  };
  for (const variant& v : variants) {
    CAPTURE(v.name);
    probe p(random_numbers({2, 4, S, 3}, 1), random_numbers({2, 2, S, 3}, 2), random_numbers({2, 2, S, 2}, 3), causal() && window(40), v.score, random_numbers(v.bias, 4, 0.5),
            random_numbers({4}, 5), 0.5, 0.6);
    p.check_differences();
  }
  probe::uneven = false;
}

TEST_CASE("a NaN in a hidden row of K hides itself forward, not backward; one in V is in every output of its tile") {
  const index_t S = 20, hidden = 7;  // one tile
  const auto is_nan = [](probe& p, const char* name) {
    const std::vector<double> numbers = p.output(name);
    const auto nans = std::count_if(numbers.begin(), numbers.end(), [](double x) { return std::isnan(x); });
    REQUIRE((nans == 0 || std::size_t(nans) == numbers.size()));
    return nans > 0;
  };
  for (const bool in_k : {true, false}) {
    CAPTURE(in_k);
    tensor q = random_numbers({1, 1, S, 3}, 1), k = random_numbers({1, 1, S, 3}, 2), v = random_numbers({1, 1, S, 3}, 3);
    for (index_t c = 0; c < 3; ++c) (in_k ? k : v).data<double>()[hidden * 3 + c] = std::nan("");
    probe p(q, k, v, causal() && kv != hidden, nullptr, tensor(f64, {0}), {}, 0.5);
    CHECK(is_nan(p, "out") == !in_k);
    CHECK(!is_nan(p, "lse"));
    CHECK(is_nan(p, "dQ"));
    CHECK(is_nan(p, "dK") == !in_k);
    CHECK(!is_nan(p, "dV"));
  }
}

TEST_CASE("a NaN among a row's visible scores is its log-sum-exp, with and without a sink; rows that see nothing keep -infinity") {
  const index_t S = 6;
  for (const bool has_sink : {false, true}) {
    tensor q = random_numbers({1, 1, S, 3}, 1), k = random_numbers({1, 1, S, 3}, 2), v = random_numbers({1, 1, S, 3}, 3);
    q.data<double>()[2 * 3] = std::nan("");
    probe p(q, k, v, causal() && samite::symbols::q != 4, nullptr, tensor(f64, {0}), has_sink ? random_numbers({1}, 5) : tensor(), 0.5);
    const std::vector<double> lse = p.output("lse");
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(lse[i]) == (i == 2));
    CHECK((lse[4] == -std::numeric_limits<double>::infinity()) == !has_sink);
  }
}

TEST_CASE("where select takes another branch, an infinite or NaN derivative does not reach the gradient") {
  const index_t S = 9;
  const auto apart = [] { return real(select(q == kv, 1, q - kv)); };
  const auto behind = [] { return real(max(q - kv, 1)); };
  const std::pair<probe::score_of, probe::score_of> pairs[] = {
      {[](const value&) { return any_score(select(q == kv, 0.0, score / (q - kv))); }, [&](const value&) { return any_score(select(q == kv, 0.0, score / apart())); }},
      {[](const value&) { return any_score(select(kv < q, score * sqrt(real(q - kv)), score)); }, [&](const value&) { return any_score(select(kv < q, score * sqrt(behind()), score)); }},
      {[](const value& t) { return any_score(select(kv < q, table(t)[kv] * log(real(q - kv)) + score, select(score > 0, score, 2.0 * score))); },
       [&](const value& t) { return any_score(select(kv < q, table(t)[kv] * log(behind()) + score, select(score > 0, score, 2.0 * score))); }},
      {[](const value&) { return any_score(select(q != kv, select(kv < q, sqrt(score * score / (q - kv)), score), score)); },
       [&](const value&) { return any_score(select(q != kv, select(kv < q, sqrt(score * score / behind()), score), score)); }}};
  for (const auto& [plain, remedied] : pairs) {
    const auto gradients = [&](const probe::score_of& f) {
      probe p(random_numbers({1, 2, S, 3}, 1), random_numbers({1, 2, S, 3}, 2), random_numbers({1, 2, S, 3}, 3), full(), f, random_numbers({S}, 4));
      std::vector<double> all;
      for (const char* name : {"out", "dQ", "dK", "dV"}) {
        const std::vector<double> one = p.output(name);
        all.insert(all.end(), one.begin(), one.end());
      }
      return all;
    };
    const std::vector<double> found = gradients(plain);
    CHECK(std::none_of(found.begin(), found.end(), [](double x) { return std::isnan(x); }));
    CHECK(found == gradients(remedied));
  }
}

TEST_CASE("conditions on scores combine with && || ! == and !=, and chains of bounds are clamp") {
  const index_t S = 9;
  const auto output = [&](const probe::score_of& f) {
    return probe(random_numbers({1, 1, S, 3}, 1), random_numbers({1, 1, S, 3}, 2), random_numbers({1, 1, S, 3}, 3), full(), f, tensor(f64, {0})).output("out");
  };
  const auto nested = output([](const value&) { return any_score(select(score > 0.1, select(score < 0.5, 1.5, score), score)); });
  CHECK(output([](const value&) { return any_score(select(score > 0.1 && score < 0.5, 1.5, score)); }) == nested);
  CHECK(output([](const value&) { return any_score(select(!(score > 0.1) || !(score < 0.5), score, 1.5)); }) == nested);
  CHECK(output([](const value&) { return any_score(select(score != score, 7.0, select(score == score, score, 7.0))); }) == output(nullptr));
  CHECK(output([](const value&) { return any_score(clamp(score, -0.5, 0.25)); }) == output([](const value&) { return any_score(min(max(score, -0.5), 0.25)); }));
  CHECK(output([](const value&) { return any_score(sigmoid(score)); }) == output([](const value&) { return any_score(1 / (1 + exp(-score))); }));
}

TEST_CASE("what is refused of a mask or score function at the run says which one, and of which attention") {
  const auto refusal = [](attention_options options) -> std::string {
    graph g;
    const value Q = g.input("Q", f32, {1, 1, 4, 8});
    options.label = "layer 3";
    g.output("y", contiguous(attention(Q, Q, Q, options).out));
    executor run(make_plan(g, CASE_DEVICE));
    run.bind("Q", tensor(f32, {1, 1, 4, 8}));
    try {
      run.step();
    } catch (const error& e) {
      return e.what();
    }
    return "";
  };
  const auto ids = table({1, 2});
  CHECK(refusal({.mask = any_mask(ids[kv] == 1, "mine")}).find("samite: attention \"layer 3\": mask \"mine\": index 0 of a table") == 0);
  CHECK(refusal({.mask = ids[kv] == 1}).find("samite: attention \"layer 3\": mask: index 0 of a table") == 0);
  CHECK(refusal({.score = score + ids[kv]}).find("samite: attention \"layer 3\": score function: index 0 of a table") == 0);
}

TEST_CASE("score functions refuse what has no meaning") {
  graph g;
  const value slopes = g.parameter("slopes", f32, {4}), ids = g.input("ids", i32, {4});
  CHECK(samite_tests::unlike("E-SCORE-RANK", {}, [&] { (void)any_score(score + table(slopes)(h, q)); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-TYPE", {}, [&] { (void)any_score(score + table(ids)[h]); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-CAP", {}, [&] { (void)softcap(0); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-CAP", {}, [&] { (void)softcap(std::nan("")); }) == "");
  for (const double wrong : {HUGE_VAL, -HUGE_VAL, -1.0}) CHECK(samite_tests::unlike("E-SCORE-CAP", {}, [&] { (void)softcap(wrong); }) == "");
  for (const double wrong : {HUGE_VAL, std::nan("")}) CHECK(samite_tests::unlike("E-SCORE-CAP", {"temperature("}, [&] { (void)temperature(wrong, 4); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-DISTANCE", {"[4,12]", "2 * 6 + 1 = 13 entries"}, [&] { (void)relative_bias(g.parameter("narrow", f32, {4, 12}), 6); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-HEADS", {}, [&] { (void)alibi(0); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-DISTANCE", {}, [&] { (void)relative_bias(slopes, -1); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-RANK", {}, [&] { (void)t5_bias(slopes); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-BUCKETS", {}, [&] { (void)t5_bias(g.parameter("few", f32, {4, 2})); }) == "");
  const value Q = g.input("q", f32, {1, 4, 8, 16});
  CHECK(samite_tests::unlike("E-ATTN-SINK", {}, [&] { (void)attention(Q, Q, Q, {.sink = g.parameter("sink", f32, {3})}); }) == "");
  CHECK(samite_tests::unlike("E-SCORE-HEADS", {"made for 8 heads but q has 4", "alibi(4)"}, [&] { (void)attention(Q, Q, Q, {.score = alibi(8)}); }) == "");
}

TEST_CASE("a length of 0 is legal too where a score function reads a tensor or a table of that length") {
  for (const index_t S : {4, 0}) {
    graph g;
    const dim tokens_of = tokens(8);
    const value Q = g.input("Q", f32, {1, 2, tokens_of, 4}), bias = g.input("bias", f32, {2, tokens_of, tokens_of});
    const auto ids = table(std::vector<index_t>(std::size_t(S), 1));
    g.output("out", contiguous(attention(Q, Q, Q, {.score = any_score(score + table(bias)(h, q, kv) + real(ids[kv]))}).out));
    executor run(make_plan(g));
    run.bind("Q", tensor(f32, {1, 2, S, 4})), run.bind("bias", tensor(f32, {2, S, S}));
    run.step();
    CHECK(run.output("out").dims() == extents{1, 2, S, 4});
  }
}

TEST_CASE("scores that differ in numbers and tensors alone are one structure") {
  graph g;
  const value one = g.parameter("one", f32, {4}), other = g.parameter("other", f32, {8});
  CHECK(any_score(softcap(30.0)).hash() == any_score(softcap(50.0)).hash());
  CHECK(any_score(alibi(one)).hash() == any_score(alibi(other)).hash());
  CHECK(any_score(softcap(30.0)).hash() != any_score(alibi(one)).hash());
  CHECK(any_score(score).is_identity());
}
