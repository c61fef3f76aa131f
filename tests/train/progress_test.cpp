#include <doctest/doctest.h>

#include <algorithm>

#include <samite/io/file.hpp>
#include <samite/train/progress.hpp>

#include "support/full_disk.hpp"
#include "support/raised.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;
using samite_tests::temporary_folder;
using samite_tests::unlike;

TEST_CASE("metrics are one JSON object a line, added to what an earlier run wrote and readable at once") {
  const temporary_folder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    metrics_log log(path);
    log.write({{"step", index_t(1)}, {"loss", 2.5}, {"job", "target \"a\"\n"}});
    const std::string first = read_file(path);  // not only when the log is closed
    CHECK(first.ends_with("}\n"));
    const json_value line = parse_json(first, path);
    CHECK(line.integer("step") == 1);
    CHECK(line.number("loss") == 2.5);
    CHECK(line.text("job") == "target \"a\"\n");
  }
  metrics_log again(path);
  again.write({{"step", index_t(2)}});
  const std::string text = read_file(path);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(parse_json(text.substr(text.find('\n') + 1), path).integer("step") == 2);
}

TEST_CASE("without a path no metrics are written, and a path that can't be written is refused") {
  metrics_log none("");
  none.write({{"step", index_t(1)}});
  const temporary_folder folder;
  CHECK(unlike("E-FILE-WRITE", {"metrics", "no/such/metrics.jsonl"}, [&] { metrics_log(folder / "no/such/metrics.jsonl"); }) == "");
}

TEST_CASE("on a full disk a metrics line is E-FILE-WRITE and the lines before it stay whole") {
  const temporary_folder folder;
  const std::string path = folder / "metrics.jsonl";
  metrics_log log(path);
  const samite_tests::full_disk full(40);
  log.write({{"step", index_t(1)}, {"loss", 2.5}});
  const std::string before = read_file(path);
  CHECK(unlike("E-FILE-WRITE", {"metrics.jsonl", "File too large"}, [&] { log.write({{"step", index_t(2)}, {"loss", 2.25}}); }) == "");
  CHECK(read_file(path) == before);
  metrics_log device("/dev/full");
  CHECK(unlike("E-FILE-WRITE", {"/dev/full", "No space left on device"}, [&] { device.write({{"step", index_t(1)}}); }) == "");
}

TEST_CASE("a progress line is due at the start and at the last step") {
  progress_line line("test", 10);
  CHECK(line.due(1));
  CHECK(line.due(10));
}
