// samite/core/renamed_error.hpp: errors that say which of several things they are about.
#pragma once
#include <string>
#include <string_view>
#include <utility>

#include <samite/core/error.hpp>

namespace samite::detail {

/// The error with `name` in the place of `operation`, with which its message begins; as it is if it begins with something else. An empty
/// operation puts the name in front.
inline error renamed(const error& e, std::string_view operation, std::string_view name) {
  constexpr std::string_view mark = "samite: ";
  std::string_view text = e.what();
  text.remove_prefix(mark.size());
  text.remove_suffix(e.code().size() + 3);  // " [code]"
  const bool begins = text.substr(0, operation.size()) == operation;
  return error(e.code(), begins ? std::string(name).append(text.substr(operation.size())) : std::string(text));
}

/// Does the work; an error out of it is renamed so.
template <class Work>
decltype(auto) with_name(std::string_view operation, std::string_view name, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const error& e) {
    throw renamed(e, operation, name);
  }
}

/// What messages call a thing with a label: `mask "mine"`, or only `mask` where the label says nothing more.
inline std::string titled(std::string_view what, std::string_view label) {
  std::string name(what);
  return label.empty() || label == what ? name : name.append(" \"").append(label).append("\"");
}

}  // namespace samite::detail
