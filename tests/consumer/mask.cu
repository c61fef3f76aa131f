// A user's device source that includes the masks: tests/cmake/check_nvcc.sh compiles it where nvcc is found.
#include <samite/mask.hpp>

#include <string>
#include <vector>

__global__ void scale(float* x, float by, int count) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) x[i] *= by;
}

std::string picture(const std::vector<std::int32_t>& documents) {
  using namespace samite::symbols;
  const auto docs = samite::table(documents);
  const samite::any_mask mask(samite::causal() && samite::window(4) && samite::document(docs) && (q - kv) % 2 == 0);
  const auto length = samite::index_t(documents.size());
  return samite::draw(mask, length, length);
}
