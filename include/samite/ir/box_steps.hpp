// samite/ir/box_steps.hpp: a predicate or index as the steps that ir/bounds.hpp takes for each box.
//
// Index arithmetic becomes sums of steps, and comparisons become leaves: a sum without its constant lies in a set of
// intervals. Equal sums are one step, so that the constraints on one of them (q - kv, q/16 - kv/16, ...) merge.
#pragma once
#include <memory>
#include <vector>

#include <samite/ir/interval.hpp>
#include <samite/ir/linear_form.hpp>
#include <samite/ir/program.hpp>
#include <samite/ir/table.hpp>

namespace samite::detail {

/// What a judge reads, for one set of arguments.
struct box_steps {
  using term = linear_form::term;  // its atom is a value step
  enum class value_code : std::uint8_t { constant, symbol, sum, quotient, remainder, binary, gather, select };
  struct value_step {
    value_code code = value_code::constant;
    op operation = op::constant;
    int a = -1, b = -1, c = -1;  // operands; of a sum: its terms [a, b); of a select: predicate, value, value
    int shift = -1;              // of a quotient or remainder: log2 of the divisor if it is a power of two
    index_t imm = 0;             // constant, symbol, added constant, divisor, table
    std::uint8_t symbols = 0;    // a bit for each symbol that the step depends on
    std::int32_t place = 0;      // among the kept steps of its axis
    // What is known of the values over a box, seen as a set:
    bool attains = false;        // both bounds are values
    bool gapless = false;        // so is every integer between them
    bool one_row = false;        // either holds only while b and h are single
    index_t block = 0;           // the step depends on q through q / block alone; 0: not on q
    index_t period = 1;          // `attains` holds only over a range of q that is made of whole periods
  };
  enum class predicate_code : std::uint8_t { constant, leaf, all, any, select, opaque };
  struct residue_class {
    index_t modulus = 1, start = 0, count = 1;  // x mod modulus is one of the `count` values from start on, cyclically
    bool is_everything() const { return count >= modulus; }
    friend bool operator==(const residue_class&, const residue_class&) = default;
  };
  // A predicate node. A leaf says: the form (a sum without constant) lies in one of the intervals and in the residue class.
  struct predicate_step {
    predicate_code code = predicate_code::constant;
    bool constant = false;
    int form = -1;
    std::vector<interval> set;
    residue_class residues;
    int first_gather = -1, second_gather = -1;  // the form is one table value minus another
    // The form's terms share neither q nor kv and attain their bounds, so that it attains at least what its gapless terms span, from
    // either bound inwards. Then a leaf that is undecided is often known to be kept in part.
    bool is_tight = false;
    std::vector<int> gapless_terms;
    std::vector<int> parts;                     // of all, any; of select: condition, then, else
    int cost = 1;
  };

  struct grain {
    index_t divisor, offset;
    friend bool operator==(const grain&, const grain&) = default;
  };

  std::vector<value_step> values;
  std::vector<term> terms;
  std::vector<predicate_step> predicates;
  std::vector<index_t> thresholds[2];  // of q and of kv: where some comparison changes
  std::vector<grain> grains[2];        // multiples of divisors, less an offset: where some quotient changes
  enum axis : std::uint8_t { rows, columns, pairs };  // without kv; with kv and without q; with both
  static axis axis_of(const value_step& step) {
    const bool q = (step.symbols >> unsigned(symbol_id::q) & 1u) != 0, kv = (step.symbols >> unsigned(symbol_id::kv) & 1u) != 0;
    return kv ? q ? pairs : columns : rows;
  }
  std::int32_t steps_on[3] = {0, 0, 0};  // how many value steps each axis has whose ranges are kept
  // What is computed in 64 bits with these arguments: the program as it was given, which kernels read, and its canonical form,
  // which evaluators read. Only what the root needs; constants stand for arguments, and tables have the slots of the program given.
  std::vector<node> computed[2];
  int root_predicate = -1, root_value = -1;
  bool is_exact = false;  // one verdict is exact
};

/// Steps and the tables that they read, by their slots in the program, as they are at one moment.
struct bound_steps {
  std::shared_ptr<const box_steps> steps;
  std::vector<std::shared_ptr<const table_contents>> tables;
};

/// The steps of root number `root` for the arguments and tables of now. The last few translations of each thread are kept.
bound_steps steps_of(const program& source, std::size_t root);

}  // namespace samite::detail

#ifndef SAMITE_SPLIT
#include <samite/ir/box_steps_impl.hpp>
#endif
