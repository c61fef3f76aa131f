#include <doctest/doctest.h>

#include <cstdio>
#include <iterator>
#include <string>

#include <samite/io/file.hpp>

#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;
using samite_tests::full_disk;
using samite_tests::temporary_folder;

TEST_CASE("write_file and read_file give the same bytes, and nothing else stays in the folder") {
  const temporary_folder folder;
  const std::string text("a\0b\n", 4);
  write_file(folder / "x", text);
  CHECK(read_file(folder / "x") == text);
  write_file(folder / "x", "");
  CHECK(read_file(folder / "x").empty());
  CHECK(folder.entry_count() == 1);
}

TEST_CASE("a file that is missing, a folder or unreadable is E-FILE-OPEN, naming the path and the cause") {
  const temporary_folder folder;
  CHECK_THROWS_WITH_AS(read_file(folder / "none"), doctest::Contains("No such file or directory; check the path"), samite::error);
  CHECK_THROWS_WITH_AS(read_file(folder.path()), doctest::Contains("is not a regular file"), samite::error);
  CHECK_THROWS_WITH_AS(read_file("/dev/null"), doctest::Contains("E-FILE-OPEN"), samite::error);
  CHECK_THROWS_WITH_AS(read_file(folder / "none"), doctest::Contains("[E-FILE-OPEN]"), samite::error);
}

TEST_CASE("a file over the limit is E-FILE-READ before anything is allocated") {
  const temporary_folder folder;
  write_file(folder / "x", "12345");
  CHECK_THROWS_WITH_AS(read_file(folder / "x", 4), doctest::Contains("has 5 bytes"), samite::error);
}

TEST_CASE("reading past the end is E-FILE-READ with the byte where the file ends") {
  const temporary_folder folder;
  write_file(folder / "x", "12345");
  const file_reader file(folder / "x");
  char buffer[8];
  file.read_at(1, buffer, 4);
  CHECK(std::string(buffer, 4) == "2345");
  CHECK_THROWS_WITH_AS(file.read_at(3, buffer, 4), doctest::Contains("it ends at byte 5, 2 bytes early"), samite::error);
}

TEST_CASE("a mapped file shows the bytes; an empty one shows none") {
  const temporary_folder folder;
  write_file(folder / "x", "abc");
  write_file(folder / "empty", "");
  CHECK(mapped_file(folder / "x").data()[2] == std::byte('c'));
  CHECK(mapped_file(folder / "empty").data().empty());
}

TEST_CASE("a write that fails half-way is E-FILE-WRITE with exit status 8; the old file stands and no temporary is left") {
  const temporary_folder folder;
  write_file(folder / "x", "old");
  std::string code;
  int status = 0;
  try {
    const full_disk full(1000);
    write_file(folder / "x", std::string(5000, 'n'));
  } catch (const samite::error& e) {
    code = e.code();
    status = e.exit_status();
  }
  CHECK(code == "E-FILE-WRITE");
  CHECK(status == 8);
  CHECK(read_file(folder / "x") == "old");
  CHECK(folder.entry_count() == 1);
}

TEST_CASE("a file written but not committed leaves nothing; a missing folder is E-FILE-WRITE") {
  const temporary_folder folder;
  {
    atomic_file file(folder / "x");
    file.write("abc");
  }
  CHECK(folder.entry_count() == 0);
  CHECK_THROWS_WITH_AS(write_file(folder / "no/x", "a"), doctest::Contains("E-FILE-WRITE"), samite::error);
}

TEST_CASE("a device or pipe is written where it is, never replaced; a full one is E-FILE-WRITE") {
  CHECK_THROWS_WITH_AS(write_file("/dev/full", "a"), doctest::Contains("writing \"/dev/full\": writing: No space left on device"), samite::error);
  write_file("/dev/null", "a");
  CHECK_THROWS_WITH_AS(read_file("/dev/null"), doctest::Contains("is not a regular file"), samite::error);
}

TEST_CASE("what a killed writer left goes with the next write or removal of that file; what another writes, and other names, stay") {
  const temporary_folder folder;
  atomic_file alive(folder / "x");  // of this process, and locked as one of any other process or container would be
  alive.write("whole");
  const auto leave_behind = [&](const char* name) { CHECK(std::fclose(std::fopen((folder / name).c_str(), "w")) == 0); };
  for (const char* name : {"x.tmp-2-0", "x.tmp-999999999-41"}) leave_behind(name);
  const char* others[] = {"x.tmp-", "x.tmp-1", "x.tmp-1-", "x.tmp--1", "x.tmp-1-2-3", "x.tmp-a-1", "xx.tmp-1-1", "y.tmp-1-1"};
  for (const char* name : others) leave_behind(name);
  write_file(folder / "x", "second");
  CHECK(folder.entry_count() == 2 + std::size(others));
  leave_behind("x.tmp-2-0");
  remove_file(folder / "x");
  CHECK(folder.entry_count() == 1 + std::size(others));
  alive.commit();
  CHECK(read_file(folder / "x") == "whole");
  CHECK(folder.entry_count() == 1 + std::size(others));
}

TEST_CASE("a removed file is gone, and removing it again is fine") {
  const temporary_folder folder;
  write_file(folder / "x", "a");
  CHECK(file_exists(folder / "x"));
  remove_file(folder / "x");
  CHECK_FALSE(file_exists(folder / "x"));
  remove_file(folder / "x");
  make_folder(folder / "f");
  CHECK_THROWS_WITH_AS(remove_file(folder / "f"), doctest::Contains("E-FILE-WRITE"), samite::error);
}
