// samite/core/say.hpp: what the library says while it goes on: lines on standard error.
#pragma once
#include <atomic>
#include <cstdio>
#include <forward_list>
#include <mutex>
#include <string>
#include <utility>

namespace samite {
namespace detail {

/// The name of the run that this process is, for its lines. Names are kept: another thread may be writing with one.
class run_name {
 public:
  static run_name& instance() {
    static run_name all;
    return all;
  }
  void set(std::string name) {
    const std::lock_guard lock(mutex_);
    kept_.push_front(std::move(name));
    now_ = &kept_.front();
  }
  const std::string* get() const { return now_; }

 private:
  std::mutex mutex_;
  std::forward_list<std::string> kept_;
  std::atomic<const std::string*> now_ = nullptr;
};

}  // namespace detail

/// Puts `[id]` before each line that `say` writes from now on; an empty id ends it. A run_status does so with its own.
///
/// threads  any
inline void name_run(std::string id) { detail::run_name::instance().set(std::move(id)); }

/// One line on standard error, "samite: text", with the run's id if it has one.
///
/// threads  any
inline void say(const std::string& text) {
  const std::string* const name = detail::run_name::instance().get();
  if (name == nullptr || name->empty()) std::fprintf(stderr, "samite: %s\n", text.c_str());
  else std::fprintf(stderr, "samite: [%s] %s\n", name->c_str(), text.c_str());
}

}  // namespace samite
