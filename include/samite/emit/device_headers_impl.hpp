// samite/emit/device_headers_impl.hpp: following the includes of emitted text.
#pragma once
#include <string>

#include <samite/core/error.hpp>
#include <samite/emit/device_headers.hpp>
#include <samite/generated/device_sources.hpp>

namespace samite {

namespace detail {

inline void collect_headers(std::string_view text, std::vector<kernel_header>& found) {
  constexpr std::string_view directive = "#include \"";
  for (std::size_t at = text.find(directive); at != std::string_view::npos; at = text.find(directive, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    const std::size_t begin = at + directive.size();
    const std::string_view name = text.substr(begin, text.find('"', begin) - begin);
    bool known = false;
    for (const kernel_header& h : found) known = known || h.name == name;
    if (known) continue;
    const device_source* source = nullptr;
    for (const device_source& s : device_sources)
      if (s.name == name) source = &s;
    ensure(source != nullptr, "an emitted kernel includes embedded device sources only");
    found.push_back({std::string(name), std::string(source->text)});
    collect_headers(source->text, found);
  }
}

}  // namespace detail

SAMITE_IMPL std::vector<kernel_header> headers_of(std::string_view text) {
  std::vector<kernel_header> found;
  detail::collect_headers(text, found);
  return found;
}

}  // namespace samite
