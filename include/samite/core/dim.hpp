// samite/core/dim.hpp: extents that may hold lengths known only at run time.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <samite/core/dtype.hpp>

namespace samite {

/// A length that is known when a plan runs; the plan is made for its capacity.
struct length_symbol {
  std::string name;
  index_t capacity;
};

/// One extent of a shape: a constant plus multiples of run-time lengths, e.g. `S + 8 * N`.
///
/// Plans reserve memory for `capacity()`; a run computes with `at(lengths)`.
class dim {
 public:
  dim(index_t extent = 0) : constant_(extent) {}  // implicit: {tokens(8192), 5120} reads as a shape
  dim(int extent) : constant_(extent) {}
  explicit dim(std::shared_ptr<const length_symbol> symbol);

  // Shapes are copied everywhere; these are instantiated once.
  dim(const dim&);
  dim(dim&&) noexcept;
  dim& operator=(const dim&);
  dim& operator=(dim&&) noexcept;
  ~dim();

  bool is_constant() const { return terms_.empty(); }
  index_t constant() const { return constant_; }

  /// The extent at the lengths' capacities. Raises E-SHAPE-OVERFLOW if 64 bits don't hold it: a plan would reserve too little.
  index_t capacity() const;

  struct term {
    std::shared_ptr<const length_symbol> symbol;
    index_t factor;
  };
  const std::vector<term>& terms() const { return terms_; }

  friend dim operator+(dim left, const dim& right);
  friend dim operator*(dim left, index_t factor);
  friend dim operator*(index_t factor, dim right) { return std::move(right) * factor; }
  friend dim operator-(dim left, const dim& right) { return std::move(left) + right * -1; }

  /// True if `factor` divides the extent whatever the lengths are.
  bool divisible_by(index_t factor) const;
  friend dim operator/(dim left, index_t factor);

  /// The same extent for every assignment of the lengths.
  friend bool operator==(const dim& left, const dim& right);

 private:
  index_t factor_of(const length_symbol* symbol) const;
  void add(const std::shared_ptr<const length_symbol>& symbol, index_t factor);

  index_t constant_ = 0;
  std::vector<term> terms_;
};

/// A run-time length of at most `capacity`; use the returned extent in every shape that shares it.
dim tokens(index_t capacity, std::string name = "tokens");

using shape = std::vector<dim>;
/// Extents with the lengths filled in.
using extents = std::vector<index_t>;

/// Actual run-time lengths.
using length_map = std::map<const length_symbol*, index_t>;

index_t evaluate(const dim& extent, const length_map& lengths);

extents evaluate(const shape& dims, const length_map& lengths);

extents capacities(const shape& dims);

index_t count(std::span<const index_t> dims);

/// Row-major strides in elements.
extents row_major_strides(std::span<const index_t> dims);

namespace detail {
void append_text(std::string& out, const dim& extent);
}  // namespace detail

/// A shape as text: [tokens,8,128].
std::string to_text(const shape& dims);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/core/dim_impl.hpp>
#endif
