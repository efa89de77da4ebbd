// Starts the engine's own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

namespace ors {

// The thread inherits a full signal mask, so that the program's signal handlers never run in it.
// Throws std::system_error if the system has no thread.
template <typename Body>
std::thread start_thread(Body&& body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::forward<Body>(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw std::system_error(error.code(), "the engine cannot start a thread (see ulimit -u)");
  }
}

}  // namespace ors
