// A new mask variant is one line, and everything else follows from it: picture, tiles, attention.
//
// Run:     your_own_mask
// Expect:  the picture of a strided mask, its tiles at a million tokens, and attention under it.
#include <cstdio>

#include <samite/samite.hpp>

#include "status.hpp"

int main(int argc, char** argv) {
  return example::run_program("Draws a mask of your own, counts its tiles and attends under it. It has no flags.", argc, argv, [] {
    using namespace samite;
    using namespace samite::symbols;
    const any_mask mine = causal() && ((q - kv) % 8 == 0 || q - kv < 4);
    std::printf("causal() && ((q - kv) %% 8 == 0 || q - kv < 4)\n%s\n", draw(mine, 24, 24).c_str());

    const tile_map tiles(causal() && window(4096), {.Q = 1 << 20, .K = 1 << 20});
    std::printf("causal() && window(4096) over a million tokens: %lld full and %lld undecided of %lld tiles, %zu bytes of lists\n", static_cast<long long>(tiles.counts().full),
                static_cast<long long>(tiles.counts().undecided), static_cast<long long>(tiles.q_tiles() * tiles.k_tiles()), tiles.bytes());

    graph g;
    const dim S = tokens(512, "S");
    const value Q = g.input("Q", f32, {1, 4, S, 32}), K = g.input("K", f32, {1, 2, S, 32}), V = g.input("V", f32, {1, 2, S, 32});
    g.output("out", contiguous(attention(Q, K, V, {.mask = mine, .label = "mine"}).out));
    executor run(make_plan(g));
    counted_random random(7, 1);
    for (const char* name : {"Q", "K", "V"}) {
      tensor t(f32, {1, *name == 'Q' ? 4 : 2, 100, 32});
      for (float& x : t.values<float>()) x = float(random.normal());
      run.bind(name, t);
    }
    run.step();
    const tensor out = run.output("out");
    std::printf("attention over 100 tokens, 4 query heads on 2 key heads: out is [1,4,100,32], its first number %.4f\n", double(out.data<float>()[0]));
  });
}
