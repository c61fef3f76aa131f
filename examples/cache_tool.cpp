// Looks after the cache of compiled kernels: what is in it, whether it is whole, how large it may be, and how it gets to other machines.
//
// Run:     cache_tool [list | verify | prune MEGABYTES | export FOLDER | import FOLDER]
// Expect:  a line an entry and a sum. A folder made by `export` is itself a cache: copy it and name it, with SAMITE_CACHE=ro
//          SAMITE_CACHE_DIR=FOLDER, on every node of a cluster, or `import` it there.
#include <charconv>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include <samite/jit/cache.hpp>

#include "status.hpp"

namespace {

using namespace samite;
using mode = disk_cache::mode;

constexpr const char* usage =
    "cache_tool                    lists the kernels in the cache (SAMITE_CACHE_DIR, or ~/.cache/samite)\n"
    "cache_tool verify             reads every entry; fails if one is damaged, or the cache or a part of it is not used\n"
    "cache_tool prune MEGABYTES    removes the least recently used until no more are left\n"
    "cache_tool export FOLDER      copies every good entry to FOLDER, which is a cache too\n"
    "cache_tool import FOLDER      copies every good entry of FOLDER into the cache";

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

/// Says what a cache that can't be read, or is not trusted, would pass over in silence.
void check_used(const disk_cache& cache) {
  std::error_code fault;
  if (is_there(cache.folder()) && std::filesystem::directory_iterator(cache.folder(), fault) == std::filesystem::directory_iterator() && fault)
    raise("E-JIT-CACHE", "\"", cache.folder(), "\" can't be read: ", fault.message(), "; set SAMITE_CACHE_DIR to a folder of yours");
  if (cache.access() == mode::off) raise("E-JIT-CACHE", "\"", cache.folder(), "\" is not used, for the reason above");
  if (cache.parts_refused() > 0)
    raise("E-JIT-CACHE", cache.parts_refused(), " folders in \"", cache.folder(), "\" were left out: they can't be read, belong to another user or can be written by others; chmod go-w them");
}

disk_cache open_cache(mode access) {
  const detail::cache_setting setting = detail::find_cache_setting();
  if (setting.folder.empty())
    raise("E-JIT-CACHE", "there is no kernel cache: ", setting.reason.empty() ? "SAMITE_CACHE is off; set it to rw or ro" : setting.reason + "; set SAMITE_CACHE_DIR to a folder of yours");
  return disk_cache(setting.folder, setting.access == mode::read_write ? access : setting.access, setting.options);
}

void list() {
  disk_cache cache = open_cache(mode::read_only);
  std::uint64_t bytes = 0;
  int count = 0;
  cache.for_each([&](const disk_cache::entry& entry) {
    auto parts = detail::key_parts(entry.key, 4);  // format, samite's version, NVRTC's build, arch
    if (parts.size() < 4) parts = {"", "?", "?", entry.key.starts_with("samite tuning") ? "tuning" : "?"};
    const std::time_t used = std::time_t(entry.used_ns / 1'000'000'000);
    char when[32] = "?";
    std::strftime(when, sizeof when, "%Y-%m-%d %H:%M", std::localtime(&used));
    const std::string what = entry.fault.empty() ? concat_text(entry.kernel.label, "  samite ", parts[1], ", NVRTC ", parts[2]) : (entry.is_unreadable ? "" : "damaged: ") + entry.fault;
    std::printf("%-8s %9llu bytes  used %s  %s\n", std::string(parts[3]).c_str(), (unsigned long long)entry.bytes, when, what.c_str());
    bytes += entry.bytes, ++count;
  });
  check_used(cache);
  std::printf("%d kernels, %llu bytes in %s%s\n", count, (unsigned long long)bytes, cache.folder().c_str(), is_there(cache.folder()) ? "" : " (there is no such folder)");
}

void verify() {
  disk_cache cache = open_cache(mode::read_only);
  int count = 0, damaged = 0, unreadable = 0;
  cache.for_each([&](const disk_cache::entry& entry) {
    ++count;
    if (entry.fault.empty()) return;
    ++(entry.is_unreadable ? unreadable : damaged);
    std::printf("%s: %s\n", entry.path.c_str(), entry.fault.c_str());
  });
  check_used(cache);
  if (damaged > 0)
    raise("E-JIT-CACHE", damaged, " of ", count, " entries of \"", cache.folder(), "\" are damaged; they are compiled anew when they are needed, or remove the files");
  if (unreadable > 0) raise("E-JIT-CACHE", unreadable, " of ", count, " entries of \"", cache.folder(), "\" can't be read, so nobody knows whether they are good; the lines above say why");
  std::printf("%d kernels in %s%s, all good\n", count, cache.folder().c_str(), is_there(cache.folder()) ? "" : " (there is no such folder)");
}

void prune(const std::string& text) {
  std::uint64_t megabytes = 0;
  const auto number = std::from_chars(text.data(), text.data() + text.size(), megabytes);
  if (number.ec != std::errc() || number.ptr != text.data() + text.size() || megabytes > 1'000'000)
    raise("E-ARG", "prune \"", text, "\": expected a whole number of megabytes from 0 to 1000000");
  disk_cache cache = open_cache(mode::read_write);
  if (cache.access() != mode::read_write) raise("E-JIT-CACHE", "SAMITE_CACHE=ro: nothing is removed from \"", cache.folder(), "\"; set SAMITE_CACHE=rw");
  const std::uint64_t left = cache.prune(megabytes << 20);
  check_used(cache);
  if (left > megabytes << 20) raise("E-FILE-WRITE", left, " bytes are left in \"", cache.folder(), "\": files can't be removed; is the folder yours to write?");
  std::printf("removed %d files from %s; %llu bytes are left\n", cache.evictions(), cache.folder().c_str(), (unsigned long long)left);
}

void copy(disk_cache& from, disk_cache& to) {
  int count = 0, damaged = 0, unreadable = 0;
  std::string unread;
  if (!is_there(from.folder())) raise("E-FILE-OPEN", "\"", from.folder(), "\": there is no such folder, so there is nothing to copy; name one that a program or export has filled");
  const bool may_store = to.access() == mode::read_write;
  from.for_each([&](const disk_cache::entry& entry) {
    if (entry.is_unreadable) return void((++unreadable, unread = entry.path + ": " + entry.fault));
    if (!entry.fault.empty()) return void(++damaged);
    if (!may_store) raise("E-JIT-CACHE", "SAMITE_CACHE=ro: nothing is stored in \"", to.folder(), "\"; set SAMITE_CACHE=rw");
    to.store(entry.key, entry.kernel);
    if (to.store_failures() > 0 || to.access() != mode::read_write) raise("E-FILE-WRITE", "writing into \"", to.folder(), "\" failed; choose a folder of yours on a disk with room");
    ++count;
  });
  check_used(from);
  if (unreadable > 0) raise("E-JIT-CACHE", unreadable, " entries of \"", from.folder(), "\" can't be read and were not copied, e.g. ", unread);
  if (count + damaged == 0) raise("E-JIT-CACHE", "\"", from.folder(), "\" holds no kernel, so nothing was copied; name a folder that a program or export has filled");
  if (to.evictions() > 0) raise("E-JIT-CACHE", "\"", to.folder(), "\" has no room for them: ", to.evictions(), " files were removed again; raise SAMITE_CACHE_MB");
  std::printf("copied %d kernels from %s to %s", count, from.folder().c_str(), to.folder().c_str());
  std::printf(damaged > 0 ? "; %d were damaged\n" : "\n", damaged);
}

disk_cache folder_of_user(const std::string& path, mode access) {
  if (path.empty() || path.front() != '/') raise("E-ARG", "\"", path, "\": give the folder as an absolute path, e.g. $PWD/kernels");
  return disk_cache(path, access, {.limit_bytes = std::uint64_t(1) << 40, .is_named_by_user = true});
}

void run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "list" : arguments[0];
  const std::size_t expected = command == "list" || command == "verify" ? 1 : 2;
  if (arguments.size() > 1 && arguments.size() != expected) raise("E-ARG", command, " takes ", expected - 1, " argument(s), not ", arguments.size() - 1, "; run with --help");
  if (arguments.size() == 1 && (command == "prune" || command == "export" || command == "import"))
    raise("E-ARG", command, " lacks its argument, ", command == "prune" ? "the megabytes that may stay, e.g. prune 500" : "a folder, e.g. $PWD/kernels", "; run with --help");
  if (arguments.size() == 1 && expected == 2 && command != "--help" && command != "-h") raise("E-ARG", "\"", command, "\" is no command; run with --help");
  if (command == "--help" || command == "-h") return void(std::puts(usage));
  if (command == "list") return list();
  if (command == "verify") return verify();
  if (command == "prune") return prune(arguments[1]);
  if (command != "export" && command != "import") raise("E-ARG", "\"", command, "\" is no command; run with --help");
  disk_cache cache = open_cache(command == "export" ? mode::read_only : mode::read_write);
  disk_cache other = folder_of_user(arguments[1], command == "export" ? mode::read_write : mode::read_only);
  if (command == "export") return copy(cache, other);
  copy(other, cache);
}

}  // namespace

int main(int argc, char** argv) {
  return example::end_with_status([&] { run(std::vector<std::string>(argv + 1, argv + argc)); });
}
