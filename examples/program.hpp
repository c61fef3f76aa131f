// examples/program.hpp: what every example does around its own work: arguments, errors, exit status.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <samite/samite.hpp>

namespace example {

inline samite::device device_named(const std::string& name) {
  if (name == "cpu") return samite::device::cpu();
  if (name.starts_with("cuda")) {
    const std::string index = name.size() > 5 && name[4] == ':' ? name.substr(5) : "0";
    if ((name == "cuda" || name[4] == ':') && index.find_first_not_of("0123456789") == std::string::npos && index.size() < 4) return samite::device::cuda(std::stoi(index));
  }
  samite::raise("E-ARG-DEVICE", "--device ", name, ": expected cpu, cuda or cuda:N");
}

inline samite::dtype dtype_named(const std::string& name) {
  if (name == "f32") return samite::f32;
  if (name == "bf16") return samite::bf16;
  samite::raise("E-ARG-DTYPE", "--dtype ", name, ": expected f32 or bf16");
}

/// Parses the arguments, runs `work` and turns errors into one line on stderr and the exit status of docs/errors.md.
template <class Work>
int run_program(CLI::App& app, int argc, char** argv, Work work) {
  try {
    app.parse(argc, argv);
    work();
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) samite::raise("E-FILE-WRITE", "writing to the standard output failed; is the disk full?");
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "samite: %s; run with --help for the flags [E-ARG]\n", e.what());
    return samite::exit_status::usage;
  } catch (const samite::error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_status();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "samite: out of host memory; use a smaller model or batch [E-MEMORY-HOST]\n");
    return samite::exit_status::memory;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "samite: %s [E-INTERNAL]\n", e.what());
    return samite::exit_status::internal;
  }
}

}  // namespace example
