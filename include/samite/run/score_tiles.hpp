// samite/run/score_tiles.hpp: score functions and their derivatives over tiles of attention on the CPU.
#pragma once
#include <algorithm>
#include <optional>

#include <samite/ir/derivative.hpp>
#include <samite/run/row_kernel.hpp>
#include <samite/run/score_ranges.hpp>

namespace samite::detail {

/// A score function during one run: values and gradients tile by tile. Identity if the attention has none.
template <class T>
class score_tiles {
 public:
  score_tiles(const attention_terms& terms, std::span<const tensor_view> tensors, const index_box& box) {
    if (terms.score == nullptr) return;
    const std::vector<tensor_view> views(tensors.begin(), tensors.end());
    if (std::min({box.b.high, box.q.high, box.kv.high}) >= 0) check_score_ranges(*terms.score, views, box);
    value_.emplace(terms.score, std::vector<char>());
    sources_ = value_->read_sources(views);
  }

  /// Also prepares `gradient`.
  void differentiate(const attention_terms& terms) {
    if (terms.score == nullptr) return;
    score_derivative d = differentiate_score(*terms.score);
    elements_ = std::move(d.elements);
    gradient_.emplace(std::make_shared<const program>(std::move(d.p)), std::vector<char>{1});
  }

  bool is_identity() const { return !value_.has_value(); }

  /// s = f(s), in place; rows are `stride` apart.
  void apply(index_t b, index_t h, index_t q, index_t kv, index_t rows, index_t columns, T* s, index_t stride) const {
    if (is_identity()) return;
    in_strips({b, h, q, kv, rows, columns, s, nullptr, stride}, [&](const pair_block<T>& strip, index_t first) {
      value_->run_pairs(strip, sources_, [&](auto root) {
        const auto y = root(0);
        for (index_t r = 0; r < strip.rows; ++r)
          for (index_t c = 0; c < columns; ++c) s[(first + r) * stride + c] = y.template at<T>(r, c);
      });
    });
  }

  /// dy becomes the adjoint of the score that `raw` holds. `add(slot, offset in elements, adjoint)` gets what each element
  /// of a tensor receives. A pair with dy = 0, which every hidden pair has, gets and gives exactly 0.
  template <class Add>
  void gradient(index_t b, index_t h, index_t q, index_t kv, index_t rows, index_t columns, const T* raw, T* dy, index_t stride, Add&& add) const {
    if (is_identity()) return;
    in_strips({b, h, q, kv, rows, columns, raw, dy, stride}, [&](const pair_block<T>& strip, index_t first) {
      gradient_->run_pairs(strip, sources_, [&](auto root) {
        const auto ds = root(0);
        for (const score_derivative::element& e : elements_) {
          const tensor_view& tensor = sources_.tensors[std::size_t(e.slot)];
          const auto adjoint = root(e.adjoint);
          for (index_t r = 0; r < strip.rows; ++r)
            for (index_t c = 0; c < columns; ++c) {
              if (dy[(first + r) * stride + c] == T(0)) continue;
              index_t offset = 0;  // in the row-major gradient
              for (int i = 0; i < e.rank; ++i) offset = offset * tensor.dims[std::size_t(i)] + root(e.indices + std::size_t(i)).template at<index_t>(r, c);
              add(e.slot, offset, adjoint.template at<T>(r, c));
            }
        }
        for (index_t r = 0; r < strip.rows; ++r)
          for (index_t c = 0; c < columns; ++c) {
            T& at = dy[(first + r) * stride + c];
            if (at != T(0)) at = ds.template at<T>(r, c);
          }
      });
    });
  }

 private:
  static constexpr index_t strip_rows = 16;  // of 64 columns: registers stay in the L1

  template <class F>
  static void in_strips(const pair_block<T>& block, F&& f) {
    for (index_t first = 0; first < block.rows; first += strip_rows) {
      pair_block<T> strip = block;
      strip.q += first;
      strip.rows = std::min(strip_rows, block.rows - first);
      strip.score += first * block.stride;
      if (strip.adjoint != nullptr) strip.adjoint += first * block.stride;
      f(strip, first);
    }
  }

  std::optional<row_kernel<T>> value_, gradient_;
  std::vector<score_derivative::element> elements_;
  pair_sources sources_;
};

}  // namespace samite::detail
