// samite/expr/table.hpp: tables that expressions look numbers up in: docs[q], anchors(b, q / 16), t[b][q].
#pragma once
#include <initializer_list>
#include <span>
#include <vector>

#include <samite/expr/index.hpp>
#include <samite/ir/table.hpp>

namespace samite {

namespace detail {

struct no_index {};

template <class E>
concept lookup_index = index_expr<E> || std::same_as<E, no_index>;

template <class... E>
fixed_number refuse_rank() {
  static_assert(never<E...>, "t(a, b, c, d): a table has one to three dimensions, and a tensor that scores read up to four axes. Put two into one, e.g. `t(a * fixed(n) + b, c, d)`. [E-MASK-TABLE-RANK]");
  return fixed_number(0);
}

template <index_expr A, lookup_index B = no_index, lookup_index C = no_index>
struct table_lookup : index_tag {
  std::shared_ptr<const index_table> source;
  A first;
  B second;
  C third;
  table_lookup(std::shared_ptr<const index_table> t, A a, B b, C c)
      : source(std::move(t)), first(std::move(a)), second(std::move(b)), third(std::move(c)) {}

  node_id lower(program& p) const {
    const node_id a = first.lower(p);
    node_id b = no_node, c = no_node;
    if constexpr (index_expr<B>) b = second.lower(p);
    if constexpr (index_expr<C>) c = third.lower(p);
    return build_gather(p, source, a, b, c);
  }

  /// The next dimension: t[b][q].
  template <index_operand E>
    requires(!index_expr<C>)
  auto operator[](E next) const {
    auto index = as_index(std::move(next));
    if constexpr (index_expr<B>) return table_lookup<A, B, decltype(index)>(source, first, second, std::move(index));
    else return table_lookup<A, decltype(index)>(source, first, std::move(index), {});
  }
  /// Sentences for t[a][b][c][d] and `t[i] = x`.
  template <index_operand E>
    requires index_expr<C>
  table_lookup operator[](E) const {
    return refuse_rank<E>(), *this;
  }
  table_lookup(const table_lookup&) = default;
  table_lookup& operator=(const table_lookup&) = default;
  template <class T>
  const table_lookup& operator=(const T&) const {
    static_assert(never<T>, "t[i] = x: a lookup reads an element and does not store one. Replace the contents with t.update(values), or compare with ==. [E-MASK-OPERAND]");
    return *this;
  }
};

inline no_index as_lookup_index(no_index none) { return none; }
template <index_operand E> auto as_lookup_index(E e) { return as_index(std::move(e)); }

// What no table is indexed by.
template <class E>
concept stray_index = !index_operand<E> && !std::same_as<E, no_index>;

template <class... E>
fixed_number refuse_index() {
  if constexpr (((std::floating_point<E> || std::derived_from<E, score_tag>) || ...))
    static_assert(never<E...>, "t[x]: x is a floating-point number; a table is indexed by integers, e.g. `t[kv / 16]`. [E-EXPR-FLOAT]");
  else
    static_assert(never<E...>, "t[x]: x is neither an index nor a whole number. Give what b, h, q, kv and numbers make, e.g. `t[kv / 16]`; a mask as 0 or 1 is select(mask, 1, 0). [E-MASK-OPERAND]");
  return fixed_number(0);
}
template <class A, class B, class C>
auto make_lookup(std::shared_ptr<const index_table> source, A a, B b, C c) {
  return table_lookup<A, B, C>(std::move(source), std::move(a), std::move(b), std::move(c));
}

}  // namespace detail

/// A handle on an integer table; copies share the contents. Made by `table(...)`.
///
/// An index that can leave the table is an error when a mask is bound to its sizes (E-MASK-TABLE-RANGE); clamp it where
/// another part of the mask excludes those pairs anyway, since both sides of && are always evaluated.
class table_ref : public table_tag {
 public:
  explicit table_ref(std::shared_ptr<index_table> shared) : shared_(std::move(shared)) {}
  table_ref(std::nullptr_t) = delete;  // a table is made by table(values)
  // A moved-from table stays as it is: moving copies.
  table_ref(const table_ref&) = default;
  table_ref& operator=(const table_ref&) = default;
  /// A sentence for `document(ids)` with a list where a table belongs.
  template <class T>
    requires requires(const T& list) { list.begin(), list.end(); }
  table_ref(const T&) {
    refuse_list<T>();
  }
  template <std::integral T>
  table_ref(std::initializer_list<T>) {
    refuse_list<T>();
  }
  template <std::integral T>
  table_ref(std::initializer_list<std::initializer_list<T>>) {
    refuse_list<T>();
  }
  /// A sentence for `document(tensor)`, `document(value)` and `jagged(3, 4)`.
  template <class T>
    requires(std::is_arithmetic_v<T> || (!std::derived_from<T, table_ref> && requires(const T& tensor) { tensor.rank(), tensor.dims(); }))
  table_ref(const T&) {
    static_assert(detail::never<T>, "a table was expected, but this is a number, a tensor or a value of the graph. Masks read tables of integers that lie on the host: copy them, e.g. "
                                    "`document(table(std::vector<int>{0, 0, 1}))`, and `update` them from run to run. [E-MASK-OPERAND]");
  }

  /// Element at one index, or the first index of several: t[b][q].
  ///
  /// errors  E-MASK-TABLE-RANK when the mask is made, if the number of indices is not the rank
  template <index_operand E>
  auto operator[](E at) const {
    return (*this)(std::move(at));
  }
  /// Element at one to three indices: t(b, q).
  template <index_operand A, class B = detail::no_index, class C = detail::no_index>
    requires((index_operand<B> || std::same_as<B, detail::no_index>) && (index_operand<C> || std::same_as<C, detail::no_index>))
  auto operator()(A first, B second = {}, C third = {}) const {
    return detail::make_lookup(shared_, detail::as_index(std::move(first)), detail::as_lookup_index(std::move(second)),
                               detail::as_lookup_index(std::move(third)));
  }

  template <detail::stray_index E>
  auto operator[](const E&) const { return detail::refuse_index<E>(); }
  template <class A, class B = detail::no_index, class C = detail::no_index>
    requires(detail::stray_index<A> || detail::stray_index<B> || detail::stray_index<C>)
  auto operator()(const A&, const B& = {}, const C& = {}) const { return detail::refuse_index<A, B, C>(); }
  template <class A, class B, class C, class D, class... More>
  auto operator()(const A&, const B&, const C&, const D&, const More&...) const { return detail::refuse_rank<A, B, C, D, More...>(); }

  /// Replaces the contents; the next run of every mask that reads the table sees them, without a new kernel.
  ///
  /// dims    the same rank as before; by default [n] of the values for a table of one dimension, and the dimensions as they are for others
  /// errors  E-MASK-TABLE-RANK, E-MASK-TABLE-SHAPE, E-MASK-TABLE-CAPACITY
  template <std::integral T>
  void update(const std::vector<T>& values, std::vector<index_t> dims = {}) {
    update(std::span<const T>(values), std::move(dims));
  }
  template <std::integral T>
  void update(std::span<const T> values, std::vector<index_t> dims = {}) {
    replace(detail::list_of(values), std::move(dims));
  }
  void update(std::initializer_list<index_t> values, std::vector<index_t> dims = {});
  template <std::integral T, std::size_t N>
  void update(const std::array<T, N>& values, std::vector<index_t> dims = {}) {
    update(std::span<const T>(values), std::move(dims));
  }
  template <std::integral T, std::size_t N>
  void update(const T (&values)[N], std::vector<index_t> dims = {}) {
    static_assert(!std::same_as<T, char>, "table.update(x): a table holds integers, not characters. Give a std::vector of integers. [E-MASK-OPERAND]");
    update(std::span<const T>(values), std::move(dims));
  }
  void update(const std::vector<bool>& values, std::vector<index_t> dims = {});
  template <class T>
    requires(requires(const T& list) { list.begin(), list.end(); } || requires(const T& tensor) { tensor.elements(), tensor.bytes(); })
  void update(const T&, const std::vector<index_t>& = {}) {
    static_assert(detail::never<T>, "table.update(x): x is no list of integers in one piece of memory. Give a std::vector of them, or std::span(pointer, count). [E-MASK-OPERAND]");
  }
  /// Makes room for updates with more values than now; call it before the first run. errors: E-MASK-TABLE-CAPACITY (below 0, above 2^40)
  void reserve(index_t elements) { shared_->reserve(elements); }

  int rank() const { return shared_->rank(); }
  /// Dimensions now, one for each index.
  std::vector<index_t> dims() const;
  std::shared_ptr<const table_contents> contents() const { return shared_->contents(); }
  const std::shared_ptr<index_table>& shared() const { return shared_; }

 private:
  template <class T>
  static constexpr void refuse_list() {
    static_assert(detail::never<T>, "a table was expected, but this is a list: copy it into a table, which `update` can change later, e.g. `document(table(ids))`. [E-MASK-OPERAND]");
  }
  void replace(detail::integer_list values, std::vector<index_t> dims);

  std::shared_ptr<index_table> shared_;
};

namespace detail {

template <index_expr E>
struct batched_lookup : index_tag {
  table_ref source;
  E index;
  batched_lookup(table_ref t, E i) : source(std::move(t)), index(std::move(i)) {}
  node_id lower(program& p) const {
    return source.rank() == 2 ? source(symbols::b, index).lower(p) : source[index].lower(p);
  }
};

table_ref table_of(integer_list values, std::vector<index_t> dims, const std::vector<index_t>& strides);

}  // namespace detail

/// t[i] of a table that all batches share (rank 1), t(b, i) of one with a row per batch (rank 2).
template <index_expr E>
auto per_batch(table_ref t, E index) {
  return detail::batched_lookup<E>(std::move(t), std::move(index));
}

/// An integer table that masks read, e.g. document ids. The values are copied (as int32); `update` replaces them.
///
/// dims     one to three dimensions, [n] of the values by default; strides (in elements) for other layouts than row-major
/// errors   E-MASK-TABLE-RANK, E-MASK-TABLE-SHAPE, E-MASK-TABLE-VALUE (a value beyond 32 bits)
template <std::integral T, std::size_t N>
table_ref table(std::span<T, N> values, std::vector<index_t> dims = {}, const std::vector<index_t>& strides = {}) {
  return detail::table_of(detail::list_of(std::span<const std::remove_const_t<T>>(values)), std::move(dims), strides);
}
template <std::integral T>
table_ref table(const std::vector<T>& values, std::vector<index_t> dims = {}, const std::vector<index_t>& strides = {}) {
  return table(std::span<const T>(values), std::move(dims), strides);
}
table_ref table(std::initializer_list<index_t> values, std::vector<index_t> dims = {});
template <std::integral T, std::size_t N>
table_ref table(const std::array<T, N>& values, std::vector<index_t> dims = {}, const std::vector<index_t>& strides = {}) {
  return table(std::span<const T>(values), std::move(dims), strides);
}
table_ref table(const std::vector<bool>& values, std::vector<index_t> dims = {}, const std::vector<index_t>& strides = {});
template <std::integral T, std::size_t N>
table_ref table(const T (&values)[N], std::vector<index_t> dims = {}, const std::vector<index_t>& strides = {}) {
  static_assert(!std::same_as<T, char>, "table(text): a table holds integers, not characters. [E-MASK-OPERAND]");
  return table(std::span<const T>(values), std::move(dims), strides);
}

namespace detail {
/// The numbers of rows that are equally long. Raises E-MASK-TABLE-SHAPE for others.
class row_list {
 public:
  void add(integer_list row);
  table_ref made() const;

 private:
  std::vector<index_t> numbers_;
  index_t rows_ = 0, length_ = 0;
};
template <class Rows>
table_ref table_of_rows(const Rows& rows) {
  row_list list;
  for (const auto& row : rows) list.add(list_of(std::span(std::data(row), std::size(row))));
  return list.made();
}
}  // namespace detail

/// A table of two dimensions from its rows: table({{1, 2}, {3, 4}}), `int ids[2][3]`, a vector of vectors.
///
/// errors  E-MASK-TABLE-SHAPE (rows of different lengths), E-MASK-TABLE-VALUE
template <std::integral T>
table_ref table(std::initializer_list<std::initializer_list<T>> rows) { return detail::table_of_rows(rows); }
template <std::integral T>
table_ref table(const std::vector<std::vector<T>>& rows) { return detail::table_of_rows(rows); }
template <std::integral T, std::size_t N, std::size_t M>
table_ref table(const T (&rows)[N][M]) { return detail::table_of_rows(rows); }

/// A sentence for tables of reals, and for tensors.
template <class T>
  requires(requires(const T& list) { list.begin(), list.end(); } || requires(const T& tensor) { tensor.elements(), tensor.bytes(); })
table_ref table(const T&, const std::vector<index_t>& = {}, const std::vector<index_t>& = {}) {
  static_assert(detail::never<T>, "table(x): x is no list of integers in one piece of memory. Masks read integers: give a std::vector of them, or table(std::span(pointer, count)); what scores read "
                                  "as reals is a tensor of the graph. [E-MASK-OPERAND]");
  return table(std::span<const int>());
}
template <class T>
  requires std::is_pointer_v<T>
table_ref table(const T&, const std::vector<index_t>& = {}) {
  static_assert(detail::never<T>, "table(pointer): how many numbers there are is not known. Give their count: table(std::span(pointer, count), {rows, columns}). [E-MASK-TABLE-SHAPE]");
  return table(std::span<const int>());
}
namespace detail {
template <class T>
table_ref refuse_dimensions() {
  static_assert(never<T>, "table(x, 2, 2): dimensions go in braces, e.g. table(ids, {2, 2}); a pointer and a count are table(std::span(pointer, count)). [E-MASK-TABLE-SHAPE]");
  return table(std::span<const int>());
}
}  // namespace detail
template <class T, std::integral D, std::integral... More>
table_ref table(const T&, D, More...) { return detail::refuse_dimensions<D>(); }
template <std::integral D, std::integral... More>
table_ref table(std::initializer_list<index_t>, D, More...) { return detail::refuse_dimensions<D>(); }

namespace detail {
template <class L, class R>
concept table_and_number = (std::derived_from<L, table_tag> && (std::is_arithmetic_v<R> || std::derived_from<R, table_tag>)) || (std::is_arithmetic_v<L> && std::derived_from<R, table_tag>);
template <class L, class R>
known_predicate table_comparison() {
  static_assert(never<L, R>, "table == x: a table is no number, but its elements are. Look one up, e.g. `docs[kv] == 1`. [E-MASK-OPERAND]");
  return known_predicate(true);
}
}  // namespace detail

template <class L, class R> requires detail::table_and_number<L, R>
auto operator==(const L&, const R&) { return detail::table_comparison<L, R>(); }
template <class L, class R> requires detail::table_and_number<L, R>
auto operator!=(const L&, const R&) { return detail::table_comparison<L, R>(); }
template <class L, class R> requires detail::table_and_number<L, R>
auto operator<(const L&, const R&) { return detail::table_comparison<L, R>(); }
template <class L, class R> requires detail::table_and_number<L, R>
auto operator>(const L&, const R&) { return detail::table_comparison<L, R>(); }
template <class L, class R> requires detail::table_and_number<L, R>
auto operator<=(const L&, const R&) { return detail::table_comparison<L, R>(); }
template <class L, class R> requires detail::table_and_number<L, R>
auto operator>=(const L&, const R&) { return detail::table_comparison<L, R>(); }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/expr/table_impl.hpp>
#endif
