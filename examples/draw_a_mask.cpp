// Draws masks as text: what each query (row) sees of the keys (columns).
//
// Run:     draw_a_mask
// Expect:  three pictures: a sliding window inside packed documents, block diffusion, and a DFlash training mask.
#include <cstdio>

#include <samite/mask.hpp>

#include "status.hpp"

int main(int argc, char** argv) {
  return example::run_program("Draws three masks as text. It has no flags.", argc, argv, [] {
    using namespace samite;
    const auto documents = table({0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2});
    std::printf("causal() && window(5) && document(documents), documents of 7, 6 and 11 tokens\n%s\n", draw(causal() && window(5) && document(documents), 24, 24).c_str());
    std::printf("block_diffusion of 12 tokens in blocks of 4: noised half, then clean half\n%s\n", draw(block_diffusion(12, 4), 24, 24).c_str());
    const any_mask drafter = dflash_mask({.context_length = scalar(16), .block_size = 4, .anchors = table({3, 9, 14}, {1, 3})});
    std::printf("DFlash training mask: 3 blocks of 4 slots behind a context of 16, anchors 3, 9 and 14\n%s\n", draw(drafter, 12, 28).c_str());
  });
}
