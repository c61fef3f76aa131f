// samite/jit/kernel_checks.hpp: what a kernel's source may not hold, since NVRTC would read files that are not in the cache's key.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <samite/core/env.hpp>
#include <samite/core/error.hpp>
#include <samite/jit/kernel_source.hpp>

// NVRTC reads no file for a relative name, as there are no folders to look in. So a file comes in by an absolute name alone, and whoever
// writes such a name in an #include, or asks __has_include for it, has it in plain sight, or computes it by macros. What is not a plain
// relative name is refused, whatever it would turn into. The scan knows no context: in a comment or a string the same words are refused
// too, unless it can be told from their line that they are no directive. Not seen is __has_include glued together by ##.
namespace samite::detail {

inline constexpr std::string_view line_blanks = " \t\v\f\r";

/// As one option, or as the beginning of one: files outside of the key, NVRTC's precompiled headers, which give the old code after an
/// edit, and an arch beside the source's own.
inline bool is_refused_option(std::string_view option) {
  static constexpr std::string_view refused[] = {"-I", "--include-path", "-include-path", "-isystem", "-include", "--pre-include", "-pre-include",
                                                 "-pch", "--pch", "-create-pch", "--create-pch", "-use-pch", "--use-pch",
                                                 "-arch", "--gpu-architecture", "-gpu-architecture"};
  option.remove_prefix(std::min(option.find_first_not_of(" \t\n\v\f\r"), option.size()));  // NVRTC passes over blanks in front
  for (const std::string_view start : refused)
    if (option.starts_with(start)) return true;
  return option.find("options-file") != option.npos || option.find("-optf") != option.npos;  // the assembler's own options from a file
}

inline void check_kernel_options(const kernel_source& source) {
  const auto check = [&](std::string_view option, const char* whose) {
    if (is_refused_option(option))
      raise("E-JIT-OPTION", "kernel \"", source.label, "\": ", whose, " \"", option, "\" makes the result depend on what is not in the cache's key; ",
            "give headers in memory (read_kernel_headers) and the arch in kernel_source::arch");
  };
  bool is_for_assembler = false;  // the one before ended in -Xptxas
  for (const std::string& option : source.options) {
    check(option, "option");
    const std::string_view text = std::string_view(option).substr(std::min(option.find_first_not_of(line_blanks), option.size()));
    for (const std::string_view name : {"-Xptxas", "--ptxas-options", "-ptxas-options"}) {
      if (!text.starts_with(name) && !is_for_assembler) continue;
      const std::string_view value = is_for_assembler ? text : text.substr(std::min(name.size() + 1, text.size()));
      if (!value.starts_with('-') && value.find_first_of("./") != value.npos)
        raise("E-JIT-OPTION", "kernel \"", source.label, "\": option \"", option, "\" has the assembler read a file, which is not in the cache's key; give the kernel in the text");
    }
    is_for_assembler = text == "-Xptxas" || text == "--ptxas-options" || text == "-ptxas-options";
  }
  for (const char* variable : {"NVRTC_APPEND_FLAGS", "NVRTC_PREPEND_FLAGS"}) {
    const std::string flags = env_text(variable).value_or("");
    for (std::size_t begin = 0; (begin = flags.find_first_not_of(" \t\n\"'", begin)) != flags.npos;) {
      const std::size_t end = std::min(flags.find_first_of(" \t\n\"'", begin), flags.size());
      check(std::string_view(flags).substr(begin, end - begin), variable);
      begin = end;
    }
  }
}

inline bool is_word_char(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

/// Parts of a text with an end that is safe to pass.
inline std::size_t after_blanks(std::string_view text, std::size_t at) { return std::min(text.find_first_not_of(line_blanks, at), text.size()); }
inline std::string_view word_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_word_char(text[end])) ++end;
  return text.substr(at, end - at);
}
/// Passes over blanks, comments and joined lines, as between the # and the name of a directive.
inline std::size_t after_comments(std::string_view text, std::size_t at) {
  while ((at = after_blanks(text, at)) < text.size()) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("\\\n")) at += 2;
    else if (rest.starts_with("\\\r\n")) at += 3;
    else if (rest.starts_with("/*")) at = std::min(text.find("*/", at + 2), text.size() - 2) + 2;
    else break;
  }
  return at;
}
/// The file's line up to `at`, and whether the line before is joined to it.
struct line_before {
  std::string_view text;
  bool is_joined = false;
  line_before(std::string_view whole, std::size_t at) {
    const std::size_t end = at == 0 ? whole.npos : whole.rfind('\n', at - 1);
    text = whole.substr(end == whole.npos ? 0 : end + 1, at - (end == whole.npos ? 0 : end + 1));
    if (end == whole.npos || end == 0) return;
    const std::size_t last = whole[end - 1] == '\r' && end > 1 ? end - 2 : end - 1;
    is_joined = whole[last] == '\\';
  }
};

/// Whether what follows is "name" or <name>, on one line, of no absolute path.
inline bool is_plain_name(std::string_view text, std::size_t at) {
  at = after_blanks(text, at);
  if (at == text.size() || (text[at] != '"' && text[at] != '<')) return false;
  const std::size_t end = text.find_first_of(text[at] == '"' ? "\"\n\\" : ">\n\\", at + 1);
  return end != text.npos && text[end] != '\n' && text[end] != '\\' && end > at + 1 && text[at + 1] != '/';
}

/// The text as the preprocessor's later phases see it, if lines are joined inside of words or marks, or trigraphs are on; else as it is.
inline std::string_view joined_text(std::string_view text, bool has_trigraphs, std::string& storage) {
  const auto is_blank = [&](std::size_t i) { return i >= text.size() || text[i] == ' ' || text[i] == '\t' || text[i] == '\n'; };
  const auto length_of_join = [](std::string_view rest) { return rest.starts_with("\\\n") ? 2u : rest.starts_with("\\\r\n") ? 3u : 0u; };
  bool is_needed = has_trigraphs && text.find("\?\?") != text.npos;
  for (std::size_t at = text.find('\\'); !is_needed && at != text.npos; at = text.find('\\', at + 1))
    if (const unsigned length = length_of_join(text.substr(at)); length > 0 && at > 0) is_needed = !is_blank(at - 1) && !is_blank(at + length);
  if (!is_needed) return text;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    char c = rest[0];
    std::size_t length = 1;
    if (has_trigraphs && rest.starts_with("\?\?")) {
      if (rest.substr(2).starts_with('=')) c = '#', length = 3;
      if (rest.substr(2).starts_with("/\n") || rest.substr(2).starts_with("/\r\n")) c = '\\', length = 3;
    }
    if (const unsigned joined = c == '\\' ? length_of_join(concat_text("\\", rest.substr(length, 2))) : 0; joined > 0) {
      at += length + joined - 1;
      continue;
    }
    storage += c, at += length;
  }
  return storage;
}

/// Calls `use` with the place behind the # of whatever may be a directive, comments passed over.
template <class Use>
void for_each_directive(std::string_view text, Use use) {
  for (const std::string_view mark : {"#", "%:"})
    for (std::size_t hash = text.find(mark); hash != text.npos; hash = text.find(mark, hash + 1)) {
      const line_before line(text, hash);
      // Behind a comment that ends on this line, anything may have begun on an earlier one.
      const std::size_t closed = line.text.rfind("*/"), begin = closed == line.text.npos ? 0 : closed + 2;
      if (after_blanks(line.text, begin) < line.text.size() && !line.is_joined) continue;
      use(after_comments(text, hash + mark.size()));
    }
}

/// What is not in the key: "includes ..." as it is said to the user, or nothing. `operators` are __has_include and the macros that only
/// pass their argument on to it; those that are found are added.
inline std::string file_outside_of_key(std::string_view text, std::vector<std::string>& operators) {
  std::string found;
  const auto say = [&](const char* what, std::size_t at) {
    if (found.empty()) found = concat_text(what, " in line ", 1 + std::count(text.begin(), text.begin() + std::ptrdiff_t(at), '\n'));
  };
  for_each_directive(text, [&](std::size_t at) {
    const std::string_view word = word_at(text, at);
    if (word != "include" && word != "include_next" && word != "import" && word != "embed") return;
    if (!is_plain_name(text, at + word.size())) say("includes a file by its path, or by a name that macros or comments hide", at);
  });
  const auto is_use_plain = [&](std::size_t begin, std::size_t end) {
    if (const std::size_t open = after_blanks(text, end); open < text.size() && text[open] == '(' && is_plain_name(text, open + 1)) return true;
    const line_before line(text, begin);
    if (line.is_joined) return false;
    // A comment to the end of the line: nothing in front of it can be a string, and no comment ends behind it.
    if (const std::size_t slashes = line.text.find("//"); slashes != line.text.npos && line.text.find_first_of("\"'") == line.text.npos && line.text.find("*/", slashes) == line.text.npos) return true;
    std::string_view before = line.text;
    const auto drop_blanks = [&] { before = before.substr(0, before.find_last_not_of(" \t") + 1); };
    const auto drop_word = [&](std::string_view word) {
      drop_blanks();
      if (!before.ends_with(word)) return false;
      before.remove_suffix(word.size());
      return before.empty() || !is_word_char(before.back());
    };
    if (drop_word("ifdef") || drop_word("ifndef") || drop_word("undef") || drop_word("elifdef") || drop_word("elifndef")) return true;
    if (before.ends_with('(')) before.remove_suffix(1);
    return drop_word("defined");
  };
  // "define NAME(X) __has_include(X)", or NAME where such a macro is defined.
  const auto is_in_definition = [&](std::size_t begin, std::size_t end) {
    const line_before line(text, begin);
    const std::size_t define = line.text.find("define");
    if (define == line.text.npos || line.is_joined) return false;
    const std::size_t name_at = after_blanks(line.text, define + 6);
    if (name_at == line.text.size()) return true;
    const std::string_view name = word_at(line.text, name_at), rest = line.text.substr(name_at + name.size());
    if (!rest.starts_with('(')) return false;
    const std::size_t argument_at = after_blanks(rest, 1);
    const std::string_view argument = word_at(rest, argument_at);
    std::size_t at = after_blanks(rest, argument_at + argument.size());
    if (argument.empty() || at == rest.size() || rest[at] != ')' || after_blanks(rest, at + 1) != rest.size()) return false;
    at = after_blanks(text, end);
    if (at == text.size() || text[at] != '(') return false;
    at = after_blanks(text, at + 1);
    if (word_at(text, at) != argument) return false;
    at = after_blanks(text, at + argument.size());
    if (at == text.size() || text[at] != ')') return false;
    if (std::find(operators.begin(), operators.end(), name) == operators.end()) operators.emplace_back(name);
    return true;
  };
  const std::vector<std::string> known = operators;
  for (const std::string& name : known)
    // strstr and not find, which looks at every first letter; the text holds no zero and ends with one.
    for (const char* place = std::strstr(text.data(), name.c_str()); place != nullptr; place = std::strstr(place + 1, name.c_str())) {
      const std::size_t begin = std::size_t(place - text.data());
      std::size_t end = begin + name.size();
      if (begin > 0 && is_word_char(text[begin - 1])) continue;
      if (word_at(text, end) == "_next") end += 5;
      if (!word_at(text, end).empty()) continue;
      if (!is_use_plain(begin, end) && !is_in_definition(begin, end)) say("asks for a file by its path, or by a name that macros or comments hide", begin);
    }
  return found;
}

/// What NVRTC, which is given C strings, would not see, and files outside of the key.
inline void check_kernel_text(const kernel_source& source) {
  bool has_trigraphs = false;  // up to C++14
  for (const std::string& option : source.options) has_trigraphs = has_trigraphs || option.find("std") != option.npos;
  std::vector<std::string> operators = {"__has_include"};
  const auto check = [&](const std::string& text, const std::string& what) {
    if (const std::size_t zero = text.find('\0'); zero != text.npos)
      raise("E-JIT-OPTION", "kernel \"", source.label, "\": ", what, " holds a zero byte at ", zero, ", and NVRTC would not see what follows; give text without one");
    std::string storage;
    if (const std::string found = file_outside_of_key(joined_text(text, has_trigraphs, storage), operators); !found.empty())
      raise("E-JIT-OPTION", "kernel \"", source.label, "\": ", what, " ", found, ", which is not in the cache's key; write each name as it is, and give headers in memory (read_kernel_headers)");
  };
  // Once more for each macro that was found to pass its argument on, as it may be used in a text before.
  for (std::size_t checked = 0; checked < operators.size();) {
    checked = operators.size();
    check(source.text, "its text");
    check(source.arch, "its arch");
    for (const kernel_header& header : source.headers) check(header.name, "a header's name"), check(header.text, "header \"" + header.name + "\"");
    for (const std::string& option : source.options) check(option, "an option");
  }
}

/// Whether the label, which is the text's file name, is part of the code. In a header such words name the header, but for macros and for
/// default arguments, which the text uses.
inline bool shows_label(const kernel_source& source) {
  const auto shows = [](const std::string& text) {
    for (const char* at = std::strstr(text.c_str(), "assert("); at != nullptr; at = std::strstr(at + 1, "assert("))
      if (at - text.c_str() < 7 || std::string_view(at - 7, 7) != "static_") return true;
    return std::strstr(text.c_str(), "__FILE__") != nullptr || std::strstr(text.c_str(), "source_location") != nullptr;
  };
  if (shows(source.text)) return true;
  for (const kernel_header& header : source.headers) {
    bool shown = std::strstr(header.text.c_str(), "source_location") != nullptr;
    for_each_directive(header.text, [&](std::size_t at) {
      if (word_at(header.text, at) != "define") return;
      std::size_t end = std::min(header.text.find('\n', at), header.text.size());
      while (end < header.text.size() && header.text[end - 1] == '\\') end = std::min(header.text.find('\n', end + 1), header.text.size());
      shown = shown || shows(header.text.substr(at, end - at));
    });
    if (shown) return true;
  }
  for (const std::string& option : source.options)
    if (option.find("lineinfo") != option.npos || option.find("line-info") != option.npos || option.find("-G") != option.npos || option.find("device-debug") != option.npos) return true;
  return false;
}

}  // namespace samite::detail
