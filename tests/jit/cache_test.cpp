#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

#include <samite/core/random.hpp>
#include <samite/io/file.hpp>
#include <samite/jit/cache.hpp>

#include "support/temporary_folder.hpp"

using namespace samite;
using samite_tests::temporary_folder;
using mode = disk_cache::mode;

namespace {

const compiled_kernel kernel{.cubin = std::string("\x7f" "ELF\0rest of the cubin", 22), .log = "42 registers"};

std::string path_of(const disk_cache& cache, const std::string& key) {
  const std::string hash = detail::hash_key(key);
  return cache.folder() + "/" + hash.substr(0, 2) + "/" + hash.substr(2) + ".kernel";
}

void overwrite(const std::string& path, const std::string& bytes) {
  ::unlink(path.c_str());
  std::ofstream(path, std::ios::binary) << bytes;  // not write_file, which waits for the disk each time
}

// Sets a variable for the scope.
struct variable {
  variable(const char* name, const char* value) : name_(name), before_(std::getenv(name) ? std::getenv(name) : ""), was_set_(std::getenv(name)) {
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~variable() { was_set_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  const char* name_;
  std::string before_;
  bool was_set_;
};

}  // namespace

TEST_CASE("a stored kernel is found again, by another cache object too; other keys are not") {
  const temporary_folder folder;
  disk_cache cache(folder / "deep/cache", mode::read_write);
  CHECK_FALSE(cache.find("key"));
  CHECK(folder.entry_count() == 0);  // nothing is created before the first store
  cache.store("key", kernel);
  disk_cache again(folder / "deep/cache", mode::read_only);
  const auto found = again.find("key");
  REQUIRE(found);
  CHECK(found->cubin == kernel.cubin);
  CHECK(found->log == kernel.log);
  CHECK_FALSE(again.find("kez"));
}

TEST_CASE("an entry cut at any byte, with a byte more, or with any bit flipped is a miss and is removed") {
  const temporary_folder folder;
  disk_cache cache(folder / "c", mode::read_write);
  cache.store("key", kernel);
  const std::string path = path_of(cache, "key"), valid = read_file(path);
  const auto is_miss = [&](const std::string& bytes) {
    overwrite(path, bytes);
    return !cache.find("key") && ::access(path.c_str(), F_OK) != 0;
  };
  for (std::size_t length = 0; length < valid.size(); ++length) CHECK(is_miss(valid.substr(0, length)));
  CHECK(is_miss(valid + "x"));
  CHECK(is_miss(std::string(valid.size(), '\0')));
  for (std::size_t byte = 0; byte < valid.size(); ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = valid;
      bytes[byte] = char(bytes[byte] ^ (1 << bit));
      CHECK(is_miss(bytes));
    }
  CHECK(cache.refused() == int(valid.size()) * 9 + 2);
  cache.store("key", kernel);
  CHECK(cache.find("key"));
}

TEST_CASE("an entry of another key, another version or with absurd lengths is a miss") {
  const temporary_folder folder;
  disk_cache cache(folder / "c", mode::read_write);
  cache.store("key", kernel);
  cache.store("other", kernel);
  overwrite(path_of(cache, "key"), read_file(path_of(cache, "other")));
  CHECK_FALSE(cache.find("key"));
  std::string bytes = read_file(path_of(cache, "other"));
  bytes[16] = bytes[17] = bytes[18] = bytes[23] = '\xff';
  overwrite(path_of(cache, "other"), bytes);
  CHECK_FALSE(cache.find("other"));
}

TEST_CASE("an entry that is a link, or a cache folder that is a link, is not followed") {
  const temporary_folder folder;
  disk_cache cache(folder / "c", mode::read_write);
  cache.store("key", kernel);
  const std::string path = path_of(cache, "key");
  CHECK(::rename(path.c_str(), (folder / "elsewhere").c_str()) == 0);
  CHECK(::symlink((folder / "elsewhere").c_str(), path.c_str()) == 0);
  CHECK_FALSE(cache.find("key"));
  CHECK(::symlink((folder / "c").c_str(), (folder / "link").c_str()) == 0);
  disk_cache linked(folder / "link", mode::read_write);
  linked.store("key", kernel);
  CHECK_FALSE(linked.find("key"));
}

TEST_CASE("a cache folder that others can write is neither read nor written") {
  const temporary_folder folder;
  disk_cache before(folder / "c", mode::read_write);
  before.store("key", kernel);
  CHECK(::chmod((folder / "c").c_str(), 0777) == 0);
  disk_cache cache(folder / "c", mode::read_write);
  CHECK_FALSE(cache.find("key"));
  cache.store("second", kernel);
  CHECK_FALSE(cache.find("second"));
}

TEST_CASE("off uses nothing and ro stores nothing") {
  const temporary_folder folder;
  disk_cache off(folder / "c", mode::off), read_only(folder / "c", mode::read_only), none("", mode::read_write);
  for (disk_cache* cache : {&off, &read_only, &none}) {
    cache->store("key", kernel);
    CHECK_FALSE(cache->find("key"));
    CHECK(cache->writable_folder("failed").empty());
  }
  CHECK(folder.entry_count() == 0);
}

TEST_CASE("a folder that can't be made costs the cache and nothing else") {
  const temporary_folder folder;
  write_file(folder / "file", "x");
  disk_cache cache((folder / "file") + "/cache", mode::read_write);
  cache.store("key", kernel);
  cache.store("key", kernel);
  CHECK(cache.store_failures() == 1);  // tried once, then left alone
  CHECK_FALSE(cache.find("key"));
}

TEST_CASE("a full disk leaves no entry and no temporary file, and older entries stay readable") {
  const temporary_folder folder;
  disk_cache cache(folder / "c", mode::read_write);
  cache.store("key", kernel);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{500, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  cache.store("big", {.cubin = std::string(5000, 'x'), .log = ""});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(cache.store_failures() == 1);
  CHECK_FALSE(cache.find("big"));
  CHECK(cache.find("key"));
  CHECK(::access(path_of(cache, "big").c_str(), F_OK) != 0);
}

TEST_CASE("the cache's place: SAMITE_CACHE_DIR, then XDG_CACHE_HOME, then HOME, each only if absolute") {
  const variable mode_variable("SAMITE_CACHE", nullptr), dir("SAMITE_CACHE_DIR", "/a/b/"), xdg("XDG_CACHE_HOME", "/x"), home("HOME", "/home/me");
  CHECK(detail::find_cache_setting().folder == "/a/b");
  const variable no_dir("SAMITE_CACHE_DIR", nullptr);
  CHECK(detail::find_cache_setting().folder == "/x/samite");
  const variable relative("XDG_CACHE_HOME", "x");
  CHECK(detail::find_cache_setting().folder == "/home/me/.cache/samite");
  const variable relative_dir("SAMITE_CACHE_DIR", "here");
  CHECK(detail::find_cache_setting().folder.empty());
  CHECK(detail::find_cache_setting().reason == "SAMITE_CACHE_DIR is no absolute path");
}

TEST_CASE("SAMITE_CACHE is off, ro or rw; another value is E-ENV-VALUE") {
  const variable dir("SAMITE_CACHE_DIR", "/a");
  { const variable v("SAMITE_CACHE", "off"); CHECK(detail::find_cache_setting().access == mode::off); }
  { const variable v("SAMITE_CACHE", "ro"); CHECK(detail::find_cache_setting().access == mode::read_only); }
  { const variable v("SAMITE_CACHE", "yes"); CHECK_THROWS_WITH_AS(detail::find_cache_setting(), doctest::Contains("E-ENV-VALUE"), samite::error); }
}

TEST_CASE("SAMITE_CACHE_MB is the cache's size and SAMITE_CACHE_SOURCES keeps sources; values that can't be are E-ENV-VALUE") {
  const variable dir("SAMITE_CACHE_DIR", "/a"), mode_variable("SAMITE_CACHE", nullptr);
  CHECK(detail::find_cache_setting().options.limit_bytes == std::uint64_t(2048) << 20);
  { const variable v("SAMITE_CACHE_MB", "3"); CHECK(detail::find_cache_setting().options.limit_bytes == 3 << 20); }
  { const variable v("SAMITE_CACHE_SOURCES", "1"); CHECK(detail::find_cache_setting().options.keeps_sources); }
  for (const char* name : {"SAMITE_CACHE_MB", "SAMITE_CACHE_SOURCES"})
    for (const char* value : {"-1", "many"}) {
      const variable v(name, value);
      CHECK_THROWS_WITH_AS(detail::find_cache_setting(), doctest::Contains("E-ENV-VALUE"), samite::error);
    }
}

TEST_CASE("without HOME, or with an odd one, there is a place or a reason, and nothing appears in the working folder") {
  const variable mode_variable("SAMITE_CACHE", nullptr), dir("SAMITE_CACHE_DIR", nullptr), xdg("XDG_CACHE_HOME", nullptr);
  for (const char* value : {static_cast<const char*>(nullptr), "", "relative", "/"}) {
    const variable home("HOME", value);
    const auto setting = detail::find_cache_setting();
    CHECK((setting.folder.empty() ? !setting.reason.empty() : setting.folder.front() == '/'));
  }
}
