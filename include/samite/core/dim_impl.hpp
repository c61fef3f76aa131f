// samite/core/dim_impl.hpp: arithmetic and text of extents.
#pragma once
#include <samite/core/dim.hpp>

namespace samite {

SAMITE_IMPL dim::dim(std::shared_ptr<const length_symbol> symbol) { terms_.push_back({std::move(symbol), 1}); }

SAMITE_IMPL dim::dim(const dim&) = default;
SAMITE_IMPL dim::dim(dim&&) noexcept = default;
SAMITE_IMPL dim& dim::operator=(const dim&) = default;
SAMITE_IMPL dim& dim::operator=(dim&&) noexcept = default;
SAMITE_IMPL dim::~dim() = default;

namespace detail {

[[noreturn]] inline void refuse_extent() { raise("E-SHAPE-OVERFLOW", "an extent that is made of others has more than 2^63 elements; lower the shape"); }
inline index_t sum_of_extents(index_t a, index_t b) {
  index_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) [[unlikely]] refuse_extent();
  return sum;
}
inline index_t product_of_extents(index_t a, index_t b) {
  index_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) [[unlikely]] refuse_extent();
  return product;
}

}  // namespace detail

SAMITE_IMPL dim operator+(dim left, const dim& right) {
  left.constant_ = detail::sum_of_extents(left.constant_, right.constant_);
  for (const dim::term& t : right.terms_) left.add(t.symbol, t.factor);
  return left;
}

SAMITE_IMPL dim operator*(dim left, index_t factor) {
  left.constant_ = detail::product_of_extents(left.constant_, factor);
  for (dim::term& t : left.terms_) t.factor = detail::product_of_extents(t.factor, factor);
  if (factor == 0) left.terms_.clear();
  return left;
}

SAMITE_IMPL dim operator/(dim left, index_t factor) {
  left.constant_ /= factor;
  for (dim::term& t : left.terms_) t.factor /= factor;
  return left;
}

SAMITE_IMPL bool operator==(const dim& left, const dim& right) {
  if (left.constant_ != right.constant_ || left.terms_.size() != right.terms_.size()) return false;
  for (const dim::term& t : left.terms_)
    if (t.factor != right.factor_of(t.symbol.get())) return false;
  return true;
}

SAMITE_IMPL index_t dim::capacity() const {
  index_t total = constant_, part = 0;
  bool overflow = false;
  for (const term& t : terms_) {
    overflow |= __builtin_mul_overflow(t.factor, t.symbol->capacity, &part);
    overflow |= __builtin_add_overflow(total, part, &total);
  }
  if (overflow) raise("E-SHAPE-OVERFLOW", "an extent with run-time length \"", terms_[0].symbol->name, "\" of capacity ", terms_[0].symbol->capacity, " has more than 2^63 elements; lower the capacity");
  return total;
}

SAMITE_IMPL bool dim::divisible_by(index_t factor) const {
  if (factor == 0 || constant_ % factor != 0) return false;
  for (const term& t : terms_)
    if (t.factor % factor != 0) return false;
  return true;
}

SAMITE_IMPL index_t dim::factor_of(const length_symbol* symbol) const {
  for (const term& t : terms_)
    if (t.symbol.get() == symbol) return t.factor;
  return 0;
}

SAMITE_IMPL void dim::add(const std::shared_ptr<const length_symbol>& symbol, index_t factor) {
  for (std::size_t i = 0; i < terms_.size(); ++i)
    if (terms_[i].symbol == symbol) {
      terms_[i].factor = detail::sum_of_extents(terms_[i].factor, factor);
      if (terms_[i].factor == 0) terms_.erase(terms_.begin() + std::ptrdiff_t(i));
      return;
    }
  if (factor != 0) terms_.push_back({symbol, factor});
}

SAMITE_IMPL dim tokens(index_t capacity, std::string name) {
  if (capacity < 0)
    raise("E-SHAPE-CAPACITY", "tokens(", capacity, "): a capacity is the largest length a plan will meet and can't be negative");
  return dim(std::make_shared<const length_symbol>(length_symbol{std::move(name), capacity}));
}

SAMITE_IMPL index_t evaluate(const dim& extent, const length_map& lengths) {
  index_t total = extent.constant();
  for (const dim::term& t : extent.terms()) {
    const auto found = lengths.find(t.symbol.get());
    if (found == lengths.end())
      raise("E-SHAPE-LENGTH", "run-time length \"", t.symbol->name, "\" has no value yet; bind an input whose shape holds it first");
    total += t.factor * found->second;
  }
  return total;
}

SAMITE_IMPL extents evaluate(const shape& dims, const length_map& lengths) {
  extents out;
  out.reserve(dims.size());
  for (const dim& extent : dims) out.push_back(evaluate(extent, lengths));
  return out;
}

SAMITE_IMPL extents capacities(const shape& dims) {
  extents out;
  out.reserve(dims.size());
  for (const dim& extent : dims) out.push_back(extent.capacity());
  return out;
}

SAMITE_IMPL index_t count(std::span<const index_t> dims) {
  index_t total = 1;
  for (index_t extent : dims) total *= extent;
  return total;
}

SAMITE_IMPL extents row_major_strides(std::span<const index_t> dims) {
  extents strides(dims.size());
  index_t step = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = step;
    step *= dims[i];
  }
  return strides;
}

namespace detail {

SAMITE_IMPL void append_text(std::string& out, const dim& extent) {
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

SAMITE_IMPL std::string to_text(const shape& dims) {
  std::string out = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) out += ",";
    detail::append_text(out, dims[i]);
  }
  return out + "]";
}

}  // namespace samite
