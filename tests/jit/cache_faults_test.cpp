// The faults of cache folders and their files; numbers are those of the faults that users of other caches met.
#include <doctest/doctest.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <locale>
#include <thread>

#include <samite/core/random.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/jit/crash_report.hpp>

#include "support/jit_faults.hpp"
#include "support/skip.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;
using namespace samite_tests;
using mode = disk_cache::mode;

namespace {

void rewrite(const std::string& path, const std::string& bytes) {
  ::unlink(path.c_str());
  write_file(path, bytes);
}

void set_age(const std::string& path, long seconds) {
  const timespec when{time_t(::time(nullptr) - seconds), 0};
  const timespec times[2] = {{1, 0}, when};  // the time of reading says nothing, as on a disk mounted noatime
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

std::uint64_t bytes_below(const std::string& folder) {
  std::uint64_t sum = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".kernel") sum += entry.file_size();
  return sum;
}

int temporaries_below(const std::string& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    count += entry.path().filename().string().starts_with(".tmp-") || entry.path().extension() == ".lock";
  return count;
}

/// A process whose mounts are its own; `work` runs there. 77 if that is not allowed.
template <class Work>
int with_own_mounts(const std::string& folder, const char* options, unsigned long flags, Work work) {
  return status_of_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.c_str(), "tmpfs", flags, options) != 0)
      return 77;
    return work() ? 0 : 1;
  });
}

constexpr uid_t other_user = 54321;

}  // namespace

TEST_CASE("case 21: an entry cut to 0, 1, a header's, half or all but one byte, or one byte longer, costs one compile and is replaced") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  const std::string key = kernel_cache(disk, echo, one_build).key_of(source_of("a")), path = entry_path(disk, key);
  kernel_cache(disk, echo, one_build).get(source_of("a"));
  const std::string valid = read_file(path);
  const std::string damaged_bytes[] = {"", valid.substr(0, 1), valid.substr(0, 56), valid.substr(0, valid.size() / 2),
                                       valid.substr(0, valid.size() - 1), valid + "x", "another program's file", std::string(valid.size(), '\0')};
  for (const std::string& bytes : damaged_bytes) {
    rewrite(path, bytes);
    kernel_cache damaged(disk, echo, one_build), after(disk, echo, one_build);
    CHECK(is_right(damaged, "a"));
    CHECK(damaged.counters().compiles == 1);
    CHECK(is_right(after, "a"));
    CHECK(after.counters().disk_hits == 1);
    CHECK(read_file(path) == valid);
  }
  CHECK(disk.refused() == 8);
}

TEST_CASE("case 22: a process killed at any call of a write leaves no partial entry, and what it leaves is cleaned up later") {
  memory_folder place;
  const temporary_folder& folder = *place;
  int rounds = 0, status = -SIGKILL;
  for (; status == -SIGKILL; ++rounds) {
    const std::string text = "kernel " + std::to_string(rounds);
    status = status_of_child([&] {
      faulty_calls calls;
      calls.write_limit = 1;  // so that there are hundreds of calls
      calls.fault = [&](file_step, int before) { return before == rounds ? ::raise(SIGKILL) : 0; };
      disk_cache disk(folder / "c", mode::read_write, {.calls = &calls});
      kernel_cache cache(disk, echo, one_build);
      return is_right(cache, text) ? 0 : 1;
    });
    faulty_calls calls;
    disk_cache disk(folder / "c", mode::read_write, {.calls = &calls});
    kernel_cache cache(disk, echo, one_build);
    CHECK(is_right(cache, text));
  }
  CHECK(status == 0);
  CHECK(rounds > 200);
  CHECK(entries_of(folder / "c") == std::array{rounds, 0});
  CHECK(temporaries_below(folder / "c") > 100);
  faulty_calls later;
  later.clock_shift_s = 7200;
  disk_cache disk(folder / "c", mode::read_write, {.calls = &later});
  disk.prune(std::uint64_t(1) << 30);
  CHECK(temporaries_below(folder / "c") == 0);
  CHECK(entries_of(folder / "c") == std::array{rounds, 0});
}

TEST_CASE("case 23: a disk that is full at a write, a flush or a close costs the entry and one warning; with room again the next run stores") {
  for (const file_step full : {file_step::write, file_step::sync, file_step::close, file_step::rename, file_step::open, file_step::make_folder}) {
    const temporary_folder folder;
    faulty_calls calls;
    calls.write_limit = 50;
    int writes = 0;
    calls.fault = [&](file_step step, int) { return step == full && (full != file_step::write || ++writes == 3) ? ENOSPC : 0; };
    warning_list warnings;
    disk_cache disk(folder / "c", mode::read_write, {.warn = warnings.take(), .calls = &calls});
    kernel_cache cache(disk, echo, one_build);
    const int step_number = int(full);
    CAPTURE(step_number);
    for (const char* text : {"a", "b", "c"}) CHECK(is_right(cache, text));
    CHECK(warnings.texts.size() == 1);
    if (!warnings.texts.empty()) CHECK(warnings.texts[0].find("No space left") != std::string::npos);
    CHECK(disk.store_failures() == 1);
    CHECK(entries_of(folder / "c") == std::array{0, 0});
    disk_cache next_disk(folder / "c", mode::read_write);
    kernel_cache next(next_disk, echo, one_build), after(next_disk, echo, one_build);
    CHECK(is_right(next, "a"));
    CHECK(is_right(after, "a"));
    CHECK(after.counters().disk_hits == 1);
  }
}

TEST_CASE("with a limit on the size of files entries beyond it are not stored, and no signal ends the process") {
  const temporary_folder folder;
  CHECK(status_of_child([&] {
          std::signal(SIGXFSZ, SIG_DFL);
          const rlimit small{4096, 4096};
          setrlimit(RLIMIT_FSIZE, &small);
          warning_list warnings;
          disk_cache disk(folder / "c", mode::read_write, {.warn = warnings.take()});
          kernel_cache cache(disk, echo, one_build);
          if (!is_right(cache, "a") || !is_right(cache, std::string(5000, 'b')) || warnings.texts.size() != 1) return 1;
          try {
            install_crash_handler(folder / "last");
          } catch (const error& e) {
            return e.code() == "E-FILE-WRITE" && entries_of(folder / "c") == std::array{1, 0} ? 0 : 2;
          }
          return 3;
        }) == 0);
}

TEST_CASE("case 23: on a disk of 1 MB kernels are right, entries that did not fit are not there, and all others are whole") {
  const temporary_folder folder;
  const int status = with_own_mounts(folder.path(), "size=1m", 0, [&] {
    warning_list warnings;
    disk_cache disk(folder / "c", mode::read_write, {.warn = warnings.take()});
    kernel_cache cache(disk, echo, one_build);
    for (int i = 0; i < 8; ++i)
      if (!is_right(cache, std::string(100'000, char('a' + i)))) return false;  // twice in each entry
    const auto [good, bad] = entries_of(folder / "c");
    return warnings.texts.size() == 1 && good > 1 && good < 8 && bad == 0;
  });
  SKIP_IF(status == 77, "mounting is not allowed here");
  CHECK(status == 0);
}

TEST_CASE("case 25: 2000 entries with one random bit flipped are 2000 misses") {
  memory_folder place;
  const temporary_folder& folder = *place;
  faulty_calls calls;
  disk_cache disk(folder / "c", mode::read_write, {.calls = &calls});
  const compiled_kernel kernel{.cubin = std::string(20'000, 'c'), .log = "log", .label = "label"};
  disk.store("key", kernel);
  const std::string path = entry_path(disk, "key"), valid = read_file(path);
  constexpr std::uint64_t seed = 25;
  MESSAGE("seed ", seed);
  counted_random random(seed, 0);
  int hits = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = valid;
    const auto bit = random.bits() % (8 * bytes.size());
    bytes[bit / 8] = char(bytes[bit / 8] ^ (1 << bit % 8));
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(::write(file, bytes.data(), bytes.size()) == ssize_t(bytes.size()));
    ::close(file);
    hits += disk.find("key").has_value();
  }
  CHECK(hits == 0);
  CHECK(disk.refused() == 2000);
}

TEST_CASE("case 26: on a network disk that is busy, stale, or denies a file just published, kernels are right and nothing is raised") {
  const temporary_folder folder;
  faulty_calls calls;
  bool is_published = false;
  int stale = 0;
  calls.fault = [&](file_step step, int) {
    if (step == file_step::rename) is_published = true;
    if (step == file_step::unlink) return EBUSY;
    if (step == file_step::open && is_published) return ENOENT;
    if (step == file_step::read && stale++ == 0) return ESTALE;
    return 0;
  };
  warning_list warnings;
  disk_cache disk(folder / "c", mode::read_write, {.warn = warnings.take(), .calls = &calls});
  kernel_cache cache(disk, echo, one_build), other(disk, echo, one_build);
  CHECK(is_right(cache, "a"));
  CHECK(is_right(other, "a"));  // it is there, but the network says no
  CHECK(disk.store_failures() <= 1);
  CHECK(warnings.texts.size() <= 1);
  calls.fault = [&](file_step step, int) { return step == file_step::read && stale++ == 0 ? ESTALE : 0; };
  disk_cache calm(folder / "c", mode::read_write, {.calls = &calls});
  kernel_cache third(calm, echo, one_build), fourth(calm, echo, one_build);
  stale = 0;
  CHECK(is_right(third, "a"));
  CHECK(calm.refused() == 0);  // what could not be read is not damaged
  CHECK(is_right(fourth, "a"));
  CHECK(fourth.counters().disk_hits == 1);
}

TEST_CASE("an entry that can't be opened or read is said to be neither good nor damaged, and stays") {
  const temporary_folder folder;
  {
    disk_cache disk(folder / "c", mode::read_write);
    kernel_cache cache(disk, echo, one_build);
    CHECK(is_right(cache, "a"));
  }
  for (const bool at_open : {true, false}) {
    faulty_calls calls;
    int opens = 0;
    calls.fault = [&](file_step step, int) { return at_open ? (step == file_step::open && ++opens == 3 ? EMFILE : 0) : (step == file_step::read ? EIO : 0); };
    disk_cache disk(folder / "c", mode::read_only, {.calls = &calls});
    std::vector<std::string> faults;
    disk.for_each([&](const disk_cache::entry& entry) {
      if (entry.is_unreadable) faults.push_back(entry.fault);
    });
    REQUIRE(faults.size() == 1);
    CHECK(faults[0].find(at_open ? "Too many open files" : "Input/output error") != std::string::npos);
  }
  CHECK(entries_of(folder / "c") == std::array{1, 0});
}

TEST_CASE("a folder at an entry's name costs that kernel alone, and the warning names it") {
  const temporary_folder folder;
  warning_list warnings;
  disk_cache disk(folder / "c", mode::read_write, {.warn = warnings.take()});
  kernel_cache cache(disk, echo, one_build);
  const std::string at = entry_path(disk, cache.key_of(source_of("a")));
  for (const char* inside : {"", "/mine"}) std::filesystem::create_directories(at + inside);
  std::filesystem::permissions(folder / "c", std::filesystem::perms::others_write | std::filesystem::perms::group_write, std::filesystem::perm_options::remove);
  CHECK(is_right(cache, "a"));
  CHECK(is_right(cache, "b"));
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts[0].find(at + "\" is a folder") != std::string::npos);
  CHECK(disk.access() == mode::read_write);
  CHECK(entries_of(folder / "c") == std::array{1, 1});
}

TEST_CASE("case 27: a store that is not allowed is tried once in a process, said once, and loses no kernel") {
  for (const int cause : {EROFS, EACCES, EDQUOT, EIO}) {
    const temporary_folder folder;
    faulty_calls calls;
    int attempts = 0;
    calls.fault = [&](file_step step, int) { return step == file_step::make_folder && ++attempts > 0 ? cause : 0; };
    warning_list warnings;
    disk_cache disk(folder / "c", mode::read_write, {.warn = warnings.take(), .calls = &calls});
    kernel_cache cache(disk, echo, one_build);
    for (const char* text : {"a", "b", "c"}) CHECK(is_right(cache, text));
    CHECK(warnings.texts.size() == 1);
    CHECK(disk.store_failures() == 1);
    CHECK(attempts <= 2);  // asking for the right to compile, and storing
    CHECK(cache.counters().compiles == 3);
  }
}

TEST_CASE("case 28: a HOME that is not there, can't be written or is a file costs the disk cache and one line") {
  const temporary_folder folder;
  write_file(folder / "file", "x");
  for (const std::string& home : {std::string("/proc/homeless-shelter"), folder / "file"})
    CHECK(status_of_child([&] {
            for (const char* name : {"SAMITE_CACHE", "SAMITE_CACHE_DIR", "XDG_CACHE_HOME"}) unsetenv(name);
            setenv("HOME", home.c_str(), 1);
            detail::cache_setting setting = detail::find_cache_setting();
            warning_list warnings;
            setting.options.warn = warnings.take();
            disk_cache disk(setting.folder, setting.access, setting.options);
            kernel_cache cache(disk, echo, one_build);
            if (!warnings.texts.empty()) return 1;  // nothing is done before the first kernel
            return is_right(cache, "a") && is_right(cache, "b") && warnings.texts.size() == 1 && cache.counters().compiles == 2 ? 0 : 2;
          }) == 0);
  CHECK(read_file(folder / "file") == "x");
  CHECK(folder.entry_count() == 1);
}

TEST_CASE("case 29: with no environment, or a HOME that is empty or relative, nothing appears in the working folder") {
  const temporary_folder folder;
  for (const char* home : {static_cast<const char*>(nullptr), "", "relative", "/"})
    CHECK(status_of_child([&] {
            clearenv();
            if (home != nullptr) setenv("HOME", home, 1);
            if (::chdir(folder.path().c_str()) != 0) return 1;
            const detail::cache_setting setting = detail::find_cache_setting();
            disk_cache disk(setting.folder, mode::read_only, setting.options);
            kernel_cache cache(disk, echo, one_build);
            return is_right(cache, "a") && (setting.folder.empty() ? !setting.reason.empty() : setting.folder.front() == '/') ? 0 : 2;
          }) == 0);
  CHECK(folder.entry_count() == 0);
}

TEST_CASE("case 30: a user that the system does not know, without HOME, has no cache on disk and right kernels") {
  SKIP_IF(::geteuid() != 0, "only root can become another user");
  CHECK(status_of_child([&] {
          clearenv();
          if (::setresuid(other_user, other_user, other_user) != 0) return 1;
          const detail::cache_setting setting = detail::find_cache_setting();
          disk_cache disk(setting.folder, setting.access, setting.options);
          kernel_cache cache(disk, echo, one_build);
          return is_right(cache, "a") && setting.folder.empty() && setting.reason.find("no home folder") != std::string::npos ? 0 : 2;
        }) == 0);
}

TEST_CASE("case 32: entries and folders that are links, of another user, or writable by others are neither read nor written through") {
  const temporary_folder folder;
  const auto is_refused = [&](const std::string& where) {
    warning_list warnings;
    disk_cache disk(where, mode::read_write, {.warn = warnings.take()});
    kernel_cache cache(disk, echo, one_build);
    return is_right(cache, "a") && cache.counters().disk_hits == 0 && is_right(cache, "new " + where) && warnings.texts.size() == 1;
  };
  const auto fill = [&](const std::string& where) {
    disk_cache disk(where, mode::read_write);
    kernel_cache cache(disk, echo, one_build);
    REQUIRE(is_right(cache, "a"));
    return entry_path(disk, cache.key_of(source_of("a")));
  };
  fill(folder / "real");
  REQUIRE(::symlink((folder / "real").c_str(), (folder / "link").c_str()) == 0);
  CHECK(is_refused(folder / "link"));
  fill(folder / "group");
  REQUIRE(::chmod((folder / "group").c_str(), 0770) == 0);
  CHECK(is_refused(folder / "group"));
  fill(folder / "world");
  REQUIRE(::chmod((folder / "world").c_str(), 0707) == 0);
  CHECK(is_refused(folder / "world"));
  for (const char* name : {"real", "group", "world"}) {
    REQUIRE(::chmod((folder / name).c_str(), 0700) == 0);
    CHECK(entries_of(folder / name) == std::array{1, 0});
  }
  // A part of the folder that others can write.
  const std::string entry = fill(folder / "part"), part = std::filesystem::path(entry).parent_path();
  REQUIRE(::chmod(part.c_str(), 0777) == 0);
  disk_cache disk(folder / "part", mode::read_write, {.warn = [](const std::string&) {}});
  CHECK_FALSE(disk.find(kernel_cache(disk, echo, one_build).key_of(source_of("a"))));
  // An entry that others can write.
  REQUIRE(::chmod(part.c_str(), 0755) == 0);
  REQUIRE(::chmod(entry.c_str(), 0666) == 0);
  CHECK_FALSE(disk.find(kernel_cache(disk, echo, one_build).key_of(source_of("a"))));
  CHECK(disk.refused() == 1);
  // An entry that is a link: removed, and what it points to stays as it was.
  const std::string linked = fill(folder / "entry");
  REQUIRE(::rename(linked.c_str(), (folder / "elsewhere").c_str()) == 0);
  REQUIRE(::symlink((folder / "elsewhere").c_str(), linked.c_str()) == 0);
  const std::string before = read_file(folder / "elsewhere");
  disk_cache with_link(folder / "entry", mode::read_write);
  kernel_cache cache(with_link, echo, one_build);
  CHECK(is_right(cache, "a"));
  CHECK(cache.counters().compiles == 1);
  CHECK(with_link.refused() == 1);
  CHECK(read_file(folder / "elsewhere") == before);
  CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(linked)));
  // A pipe in an entry's place does not hang the reader.
  REQUIRE(::unlink(linked.c_str()) == 0);
  REQUIRE(::mkfifo(linked.c_str(), 0600) == 0);
  kernel_cache with_pipe(with_link, echo, one_build);
  CHECK(is_right(with_pipe, "a"));
}

TEST_CASE("case 32: a folder or an entry of another user is not used") {
  SKIP_IF(::geteuid() != 0, "only root can give files away");
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache first(disk, echo, one_build), second(disk, echo, one_build);
  REQUIRE(is_right(first, "a"));
  REQUIRE(::chown(entry_path(disk, first.key_of(source_of("a"))).c_str(), other_user, other_user) == 0);
  CHECK(is_right(second, "a"));
  CHECK(second.counters().disk_hits == 0);
  REQUIRE(::chown((folder / "c").c_str(), other_user, other_user) == 0);
  warning_list warnings;
  disk_cache theirs(folder / "c", mode::read_write, {.is_named_by_user = true, .warn = warnings.take()});
  kernel_cache third(theirs, echo, one_build);
  CHECK(is_right(third, "a"));
  CHECK(third.counters().disk_hits == 0);
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts[0].find("belongs to another user") != std::string::npos);
}

TEST_CASE("case 33: a cache that one user built and another names, read-only, is read; to write into it is refused") {
  SKIP_IF(::geteuid() != 0, "only root can become another user");
  const temporary_folder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  const auto as_user = [&](uid_t user, mode access, auto work) {
    return status_of_child([&] {
      ::umask(022);
      if (::setresuid(user, user, user) != 0) return 1;
      disk_cache disk(folder / "c", access, {.is_named_by_user = true, .warn = [](const std::string&) {}});
      kernel_cache cache(disk, echo, one_build);
      return is_right(cache, "a") && work(cache.counters()) ? 0 : 2;
    });
  };
  REQUIRE(::mkdir((folder / "c").c_str(), 0755) == 0);
  REQUIRE(::chown((folder / "c").c_str(), other_user, other_user) == 0);
  CHECK(as_user(other_user, mode::read_write, [](auto counts) { return counts.compiles == 1; }) == 0);
  CHECK(as_user(other_user + 1, mode::read_only, [](auto counts) { return counts.disk_hits == 1; }) == 0);
  CHECK(as_user(other_user + 1, mode::read_write, [](auto counts) { return counts.disk_hits == 0; }) == 0);
}

TEST_CASE("case 34: a disk from which nothing may be executed holds the cache") {
  const temporary_folder folder;
  const int status = with_own_mounts(folder.path(), "size=1m", MS_NOEXEC, [&] {
    disk_cache disk(folder / "c", mode::read_write);
    kernel_cache first(disk, echo, one_build), second(disk, echo, one_build);
    return is_right(first, "a") && is_right(second, "a") && second.counters().disk_hits == 1;
  });
  SKIP_IF(status == 77, "mounting is not allowed here");
  CHECK(status == 0);
}

TEST_CASE("case 35: a path with a space, quotes, a semicolon, a dollar, a newline and letters of other scripts is a path") {
  const temporary_folder folder;
  const std::string odd = "a b'c\"d;e$HOME`f\nÄ漢*";
  std::filesystem::create_directories(folder / odd + "/include/deep er");
  write_file((folder / odd) + "/include/deep er/h.cuh", "#define factor 3.f\n");
  kernel_source source = source_of("#include <deep er/h.cuh>\nextern \"C\" __global__ void k(float* x) { *x = factor; }\n");
  source.headers = read_kernel_headers((folder / odd) + "/include");
  REQUIRE(source.headers.size() == 1);
  CHECK(source.headers[0].name == "deep er/h.cuh");
  const auto compile = nvrtc_available() ? kernel_cache::compile_function(compile_kernel) : kernel_cache::compile_function(echo);
  disk_cache disk((folder / odd) + "/c", mode::read_write);
  kernel_cache first(disk, compile, one_build), second(disk, compile, one_build);
  const std::string cubin = first.get(source)->cubin;
  CHECK(second.get(source)->cubin == cubin);
  CHECK(second.counters().disk_hits == 1);
  CHECK(folder.entry_count() == 1);
}

TEST_CASE("case 37: a cache of 1 MB stays below it while 1000 kernels of 10 KB are stored and read by others") {
  memory_folder place;
  const temporary_folder& folder = *place;
  faulty_calls calls;
  disk_cache disk(folder / "c", mode::read_write, {.limit_bytes = 1 << 20, .calls = &calls});
  const auto kernel = [](int i) { return compiled_kernel{.cubin = std::string(10'000, char('a' + i % 26)), .log = ""}; };
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0, newest = 0;
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r)
    readers.emplace_back([&] {
      for (int i = 0; !stop; ++i) {
        if (const auto found = disk.find(std::to_string(newest - i % 50))) wrong += found->cubin.size() != 10'000;
        if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  std::uint64_t largest = 0;
  for (int i = 0; i < 1000; ++i) {
    disk.store(std::to_string(i), kernel(i));
    newest = i;
    if (i % 100 == 99) largest = std::max(largest, bytes_below(folder / "c"));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
  CHECK(disk.refused() == 0);
  CHECK(largest <= (1 << 20) + (1 << 17) + 12'000);  // the limit, and what is stored between two looks
  disk.prune(1 << 20);
  CHECK(bytes_below(folder / "c") <= 1 << 20);
  CHECK(disk.evictions() > 800);
  CHECK(disk.find("999")->cubin == kernel(999).cubin);
}

TEST_CASE("case 38: who was not hit for the longest time goes first, whatever the times of reading say") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  const compiled_kernel kernel{.cubin = std::string(10'000, 'c'), .log = ""};
  int age = 40'000;
  for (const char* key : {"oldest", "middle", "newest"}) {
    disk.store(key, kernel);
    set_age(entry_path(disk, key), age -= 10'000);
  }
  REQUIRE(disk.find("oldest"));
  disk.prune(25'000);
  CHECK(disk.find("oldest"));
  CHECK(disk.find("newest"));
  CHECK_FALSE(disk.find("middle"));
}

TEST_CASE("case 40: the data is flushed before it gets its name, and a file that lost its data is a miss") {
  const temporary_folder folder;
  faulty_calls calls;
  std::vector<file_step> steps;
  calls.fault = [&](file_step step, int) {
    steps.push_back(step);
    return 0;
  };
  disk_cache disk(folder / "c", mode::read_write, {.calls = &calls});
  disk.store("key", {.cubin = "cubin", .log = ""});
  const auto renamed = std::find(steps.begin(), steps.end(), file_step::rename);
  REQUIRE(renamed != steps.end());
  CHECK(std::find(steps.begin(), renamed, file_step::sync) > std::find(steps.begin(), renamed, file_step::write));
  CHECK(std::count(steps.begin(), renamed, file_step::sync) == 1);
  CHECK(std::count(renamed, steps.end(), file_step::sync) == 1);  // the folder
  const std::string path = entry_path(disk, "key"), valid = read_file(path);
  for (std::size_t kept : {std::size_t(0), std::size_t(56), valid.size() - 3}) {
    rewrite(path, valid.substr(0, kept) + std::string(valid.size() - kept, '\0'));
    CHECK_FALSE(disk.find("key"));
  }
}

TEST_CASE("a clock that jumps by ten years, in either direction, costs no hit and no entry") {
  const temporary_folder folder;
  constexpr std::int64_t ten_years_s = 10ll * 365 * 86400;
  faulty_calls calls;
  disk_cache disk(folder / "c", mode::read_write, {.limit_bytes = 1 << 20, .calls = &calls});
  const compiled_kernel kernel{.cubin = std::string(1000, 'c'), .log = ""};
  for (const std::int64_t shift : {std::int64_t(0), ten_years_s, -ten_years_s}) {
    calls.clock_shift_s = shift;
    disk.store(std::to_string(shift), kernel);
    CHECK(disk.find("0"));
    disk.prune(1 << 20);
    CHECK(disk.find(std::to_string(shift)));
  }
  calls.clock_shift_s = 0;
  disk.store("new", kernel);  // its neighbours were used "in ten years" and ten years ago
  disk.prune(3000);
  CHECK(disk.find("new"));
}

TEST_CASE("a cache folder that a cleaner takes away in the middle of a run is made anew") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write, {.warn = [](const std::string& text) { FAIL(text); }});
  disk.store("a", {.cubin = "a", .log = ""});
  std::filesystem::remove_all(folder / "c");
  CHECK_FALSE(disk.find("a"));
  disk.store("b", {.cubin = "b", .log = ""});
  CHECK(disk.find("b"));
}

TEST_CASE("another entry under a key's name, as when two hashes were equal, is a miss and not the other kernel") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache cache(disk, echo, one_build), next(disk, echo, one_build);
  cache.get(source_of("a")), cache.get(source_of("b"));
  const std::string a = entry_path(disk, cache.key_of(source_of("a"))), b = entry_path(disk, cache.key_of(source_of("b")));
  rewrite(a, read_file(b));
  CHECK(entries_of(folder / "c") == std::array{1, 1});
  CHECK(is_right(next, "a"));
  CHECK(next.counters().compiles == 1);
  CHECK(entries_of(folder / "c") == std::array{2, 0});
}

TEST_CASE("where numbers have a decimal comma, keys and entries are the same") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache cache(disk, echo, one_build), next(disk, echo, one_build);
  cache.get(source_of("1.5f"));
  struct comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale(), new comma));  // for streams; printf's follows where one is installed
  for (const char* name : {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"})
    if (std::setlocale(LC_ALL, name) != nullptr) break;
  const bool is_hit = is_right(next, "1.5f") && next.counters().disk_hits == 1;
  const std::string explained = next.explain(source_of("1.5f"));
  std::locale::global(before);
  std::setlocale(LC_ALL, "C");
  CHECK(is_hit);
  CHECK(explained.find(std::to_string(next.key_of(source_of("1.5f")).size()) + " bytes") != std::string::npos);
  CHECK(explained.find(" in 0,") == std::string::npos);
}

TEST_CASE("10000 kernels are 10000 entries, each found again") {
  memory_folder place;
  const temporary_folder& folder = *place;
  faulty_calls calls;
  disk_cache disk(folder / "c", mode::read_write, {.calls = &calls});
  kernel_cache cache(disk, echo, one_build), next(disk, echo, one_build);
  int wrong = 0;
  for (kernel_cache* each : {&cache, &next})
    for (int i = 0; i < 10'000; ++i) wrong += !is_right(*each, std::to_string(i));
  CHECK(wrong == 0);
  CHECK(cache.counters().compiles == 10'000);
  CHECK(next.counters().disk_hits == 10'000);
  CHECK(next.history().size() == 10'000);
}

TEST_CASE("case 90: a switch that is set after the cache was first used changes nothing, as docs/environment.md says") {
  const temporary_folder folder;
  CHECK(status_of_child([&] {
          setenv("SAMITE_CACHE_DIR", (folder / "c").c_str(), 1);
          setenv("SAMITE_CACHE", "rw", 1);
          disk_cache::instance();
          setenv("SAMITE_CACHE", "off", 1);
          setenv("SAMITE_CACHE_DIR", "/elsewhere", 1);
          return disk_cache::instance().access() == mode::read_write && disk_cache::instance().folder() == folder / "c" ? 0 : 1;
        }) == 0);
  CHECK(read_file("docs/environment.md").find("SAMITE_CACHE* once in a process") != std::string::npos);
}
