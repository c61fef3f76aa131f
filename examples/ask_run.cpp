// Asks a run in the background whether it lives, where it is, or how it ended.
//
// Run:     ask_run FOLDER   (the --output of a trainer with .status behind it, e.g. build/target.status)
// Expect:  one line, and status 0 if the run is alive or ended well, 1 if it ended otherwise or died, 2 if there is none.
#include <cstdio>

#include <samite/jit/run_status.hpp>

#include "status.hpp"

int main(int argc, char** argv) {
  int answer = 2;
  const int status = example::end_with_status([&] {
    if (argc != 2 || argv[1][0] == '-') samite::raise("E-ARG", "ask_run takes one folder, e.g. ask_run build/target.status");
    const samite::run_report report = samite::read_run_status(argv[1]);
    std::printf("%s\n", report.text().c_str());
    using state = samite::run_report::state;
    answer = report.now == state::absent ? 2 : report.now == state::running || (report.now == state::ended && report.exit_status == 0) ? 0 : 1;
  });
  return status != 0 ? status : answer;
}
