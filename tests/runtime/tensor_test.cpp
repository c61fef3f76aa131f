#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <samite/runtime/cuda_driver.hpp>
#include <samite/runtime/tensor.hpp>

using namespace samite;

TEST_CASE("a new host tensor is zero, 64-byte aligned, and has the shape's bytes") {
  tensor t(bf16, {3, 5});
  CHECK(t.elements() == 15);
  CHECK(t.bytes() == 30);
  CHECK(t.dims() == extents{3, 5});
  CHECK(reinterpret_cast<std::uintptr_t>(t.raw()) % 64 == 0);
  for (std::uint16_t value : t.values<std::uint16_t>()) CHECK(value == 0);
}

TEST_CASE("a scalar has one element, a zero extent none, and a default tensor is empty") {
  CHECK(tensor(f32, extents{}).elements() == 1);
  CHECK(tensor(f32, {3, 0, 7}).elements() == 0);
  CHECK_FALSE(tensor(f32, {3, 0, 7}).is_empty());
  CHECK(tensor().is_empty());
  CHECK(tensor(f32, {0, index_t(1) << 62, 8}).elements() == 0);
}

TEST_CASE("copies share the storage, clones do not") {
  tensor a = tensor::from({2}, std::vector<float>{1, 2});
  tensor b = a, c = a.clone();
  b.data<float>()[0] = 7;
  CHECK(a.data<float>()[0] == 7);
  CHECK(c.data<float>()[0] == 1);
  CHECK(a.shares_storage_with(b));
  CHECK_FALSE(a.shares_storage_with(c));
}

TEST_CASE("data<T>() refuses another element type, naming both") {
  tensor t(f32, {2});
  CHECK_THROWS_WITH_AS(t.data<double>(), doctest::Contains("E-TENSOR-DTYPE"), samite::error);
  CHECK_THROWS_WITH_AS(t.data<double>(), doctest::Contains("data<double>() of a tensor f32 [2]"), samite::error);
  CHECK(tensor(f16, {2}).values<std::uint16_t>().size() == 2);
}

TEST_CASE("sizes that overflow and negative extents are refused before anything is allocated") {
  const index_t big = index_t(1) << 40;
  CHECK_THROWS_WITH_AS(tensor(f32, {big, big}), doctest::Contains("E-SHAPE-OVERFLOW"), samite::error);
  CHECK_THROWS_WITH_AS(tensor(f64, {index_t(1) << 60, 8}), doctest::Contains("E-SHAPE-OVERFLOW"), samite::error);
  CHECK_THROWS_WITH_AS(tensor(f32, {-1, 4}), doctest::Contains("[-1,4]"), samite::error);
}

TEST_CASE("memory that the system refuses is E-MEMORY-HOST and exit status 5") {
  try {
    tensor t(f64, {index_t(1) << 59});
    FAIL("4 EiB were allocated");
  } catch (const samite::error& e) {
    CHECK(e.code() == "E-MEMORY-HOST");
    CHECK(e.exit_status() == 5);
  }
}

TEST_CASE("reshaped shares the storage and keeps the number of elements") {
  const tensor t = tensor::from({2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(t.reshaped({3, 2}).data<float>()[5] == 6);
  CHECK(t.reshaped({3, 2}).shares_storage_with(t));
  CHECK_THROWS_WITH_AS(t.reshaped({4}), doctest::Contains("E-TENSOR-SHAPE"), samite::error);
}

TEST_CASE("copy_from wants the same dtype and number of elements") {
  tensor t(f32, {2});
  t.copy_from(tensor::from({2, 1}, std::vector<float>{3, 4}));
  CHECK(t.data<float>()[1] == 4);
  CHECK_THROWS_WITH_AS(t.copy_from(tensor(f64, {2})), doctest::Contains("E-TENSOR-DTYPE"), samite::error);
  CHECK_THROWS_WITH_AS(t.copy_from(tensor(f32, {3})), doctest::Contains("E-TENSOR-SHAPE"), samite::error);
}

TEST_CASE("a host tensor has no device address") {
  CHECK_THROWS_WITH_AS(tensor(f32, {2}).address(), doctest::Contains("E-TENSOR-DEVICE"), samite::error);
}

TEST_CASE("to_dtype rounds reals to nearest even and goes through no second rounding") {
  const tensor t = tensor::from({4}, std::vector<float>{1.0f, 1.00390625f, -3.1415927f, 65504.f});
  const tensor b = t.to_dtype(bf16);
  CHECK(from_bf16(b.data<std::uint16_t>()[1]) == 1.0f);  // a tie goes to the even neighbour
  CHECK(from_bf16(b.data<std::uint16_t>()[2]) == -3.140625f);
  CHECK(from_f16(t.to_dtype(f16).data<std::uint16_t>()[3]) == 65504.f);
  CHECK(b.to_dtype(f32).data<float>()[2] == -3.140625f);
  // Just above the tie between 1 and 1 + 2^-7, by less than a float shows: through a rounded float it would become the tie.
  tensor d(f64, {2});
  d.data<double>()[0] = 1 + 0x1p-8 + 0x1p-40;
  d.data<double>()[1] = -(1 + 0x1p-8 + 0x1p-40);
  CHECK(from_bf16(d.to_dtype(bf16).data<std::uint16_t>()[0]) == 1 + 0x1p-7f);
  CHECK(from_bf16(d.to_dtype(bf16).data<std::uint16_t>()[1]) == -(1 + 0x1p-7f));
}

TEST_CASE("to_dtype from real to integer truncates, saturates and gives 0 for NaN; integers keep 64 bits") {
  tensor t(f64, {5});
  const double values[] = {-2.9, 300, 1e300, std::numeric_limits<double>::quiet_NaN(), -1e300};
  std::copy(std::begin(values), std::end(values), t.data<double>());
  const tensor i = t.to_dtype(i32), u = t.to_dtype(u8), l = t.to_dtype(i64);
  CHECK(i.data<std::int32_t>()[0] == -2);
  CHECK(i.data<std::int32_t>()[2] == std::numeric_limits<std::int32_t>::max());
  CHECK(i.data<std::int32_t>()[3] == 0);
  CHECK(u.data<std::uint8_t>()[0] == 0);
  CHECK(u.data<std::uint8_t>()[1] == 255);
  CHECK(l.data<std::int64_t>()[4] == std::numeric_limits<std::int64_t>::min());
  const tensor ids = tensor::from({1}, std::vector<index_t>{(index_t(1) << 53) + 1});
  CHECK(ids.to_dtype(u8).data<std::uint8_t>()[0] == 1);
}
