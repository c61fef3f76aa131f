// samite/core/dim.hpp: extents that may hold lengths known only at run time.
#pragma once
#include <atomic>
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
  explicit dim(std::shared_ptr<const length_symbol> symbol) { terms_.push_back({std::move(symbol), 1}); }

  bool is_constant() const { return terms_.empty(); }
  index_t constant() const { return constant_; }

  /// The extent at the lengths' capacities. Raises E-SHAPE-OVERFLOW if 64 bits don't hold it: a plan would reserve too little.
  index_t capacity() const {
    index_t total = constant_, part = 0;
    bool overflow = false;
    for (const term& t : terms_) {
      overflow |= __builtin_mul_overflow(t.factor, t.symbol->capacity, &part);
      overflow |= __builtin_add_overflow(total, part, &total);
    }
    if (overflow) raise("E-SHAPE-OVERFLOW", "an extent with run-time length \"", terms_[0].symbol->name, "\" of capacity ", terms_[0].symbol->capacity, " has more than 2^63 elements; lower the capacity");
    return total;
  }

  struct term {
    std::shared_ptr<const length_symbol> symbol;
    index_t factor;
  };
  const std::vector<term>& terms() const { return terms_; }

  friend dim operator+(dim left, const dim& right) {
    left.constant_ += right.constant_;
    for (const term& t : right.terms_) left.add(t.symbol, t.factor);
    return left;
  }
  friend dim operator*(dim left, index_t factor) {
    left.constant_ *= factor;
    for (term& t : left.terms_) t.factor *= factor;
    if (factor == 0) left.terms_.clear();
    return left;
  }
  friend dim operator*(index_t factor, dim right) { return std::move(right) * factor; }
  friend dim operator-(dim left, const dim& right) { return std::move(left) + right * -1; }

  /// True if `factor` divides the extent whatever the lengths are.
  bool divisible_by(index_t factor) const {
    if (factor == 0 || constant_ % factor != 0) return false;
    for (const term& t : terms_)
      if (t.factor % factor != 0) return false;
    return true;
  }
  friend dim operator/(dim left, index_t factor) {
    left.constant_ /= factor;
    for (term& t : left.terms_) t.factor /= factor;
    return left;
  }

  /// The same extent for every assignment of the lengths.
  friend bool operator==(const dim& left, const dim& right) {
    if (left.constant_ != right.constant_ || left.terms_.size() != right.terms_.size()) return false;
    for (const term& t : left.terms_)
      if (t.factor != right.factor_of(t.symbol.get())) return false;
    return true;
  }

 private:
  index_t factor_of(const length_symbol* symbol) const {
    for (const term& t : terms_)
      if (t.symbol.get() == symbol) return t.factor;
    return 0;
  }
  void add(const std::shared_ptr<const length_symbol>& symbol, index_t factor) {
    for (std::size_t i = 0; i < terms_.size(); ++i)
      if (terms_[i].symbol == symbol) {
        terms_[i].factor += factor;
        if (terms_[i].factor == 0) terms_.erase(terms_.begin() + std::ptrdiff_t(i));
        return;
      }
    if (factor != 0) terms_.push_back({symbol, factor});
  }

  index_t constant_ = 0;
  std::vector<term> terms_;
};

/// A run-time length of at most `capacity`; use the returned extent in every shape that shares it.
inline dim tokens(index_t capacity, std::string name = "tokens") {
  if (capacity < 0)
    raise("E-SHAPE-CAPACITY", "tokens(", capacity, "): a capacity is the largest length a plan will meet and can't be negative");
  return dim(std::make_shared<const length_symbol>(length_symbol{std::move(name), capacity}));
}

using shape = std::vector<dim>;
/// Extents with the lengths filled in.
using extents = std::vector<index_t>;

/// Actual run-time lengths.
using length_map = std::map<const length_symbol*, index_t>;

inline index_t evaluate(const dim& extent, const length_map& lengths) {
  index_t total = extent.constant();
  for (const dim::term& t : extent.terms()) {
    const auto found = lengths.find(t.symbol.get());
    if (found == lengths.end())
      raise("E-SHAPE-LENGTH", "run-time length \"", t.symbol->name, "\" has no value yet; bind an input whose shape holds it first");
    total += t.factor * found->second;
  }
  return total;
}

inline extents evaluate(const shape& dims, const length_map& lengths) {
  extents out;
  out.reserve(dims.size());
  for (const dim& extent : dims) out.push_back(evaluate(extent, lengths));
  return out;
}

inline extents capacities(const shape& dims) {
  extents out;
  out.reserve(dims.size());
  for (const dim& extent : dims) out.push_back(extent.capacity());
  return out;
}

inline index_t count(std::span<const index_t> dims) {
  index_t total = 1;
  for (index_t extent : dims) total *= extent;
  return total;
}

/// Row-major strides in elements.
inline extents row_major_strides(std::span<const index_t> dims) {
  extents strides(dims.size());
  index_t step = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = step;
    step *= dims[i];
  }
  return strides;
}

namespace detail {
inline void append_text(std::string& out, const dim& extent) {
  bool first = true;
  for (const dim::term& t : extent.terms()) {
    if (!first) out += "+";
    first = false;
    if (t.factor != 1) append_text(out, t.factor), out += "*";
    out += t.symbol->name;
  }
  if (first || extent.constant() != 0) {
    if (!first) out += "+";
    append_text(out, extent.constant());
  }
}
}  // namespace detail

/// A shape as text: [tokens,8,128].
inline std::string to_text(const shape& dims) {
  std::string out = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) out += ",";
    detail::append_text(out, dims[i]);
  }
  return out + "]";
}

}  // namespace samite
