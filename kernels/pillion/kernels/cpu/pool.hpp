// Threads that take work in small pieces from a shared counter.
//
// A thread that the system gives no core takes no piece, and nobody waits for it: the caller works too, and
// waits only for pieces that were begun.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace pillion {

constexpr int64_t kAlone = 16384;  // elements that are moved: below, another thread is awake too late to help

class Pool {
 public:
  // Null where the system gives no more threads.
  static Pool* start(int threads) {
    auto pool = std::make_unique<Pool>();
    try {
      for (int i = 1; i < threads; ++i) pool->workers_.emplace_back([at = pool.get()] { at->work(); });
    } catch (const std::system_error&) {
      return nullptr;
    }
    return pool.release();
  }

  Pool() = default;
  Pool(const Pool&) = delete;

  ~Pool() {
    stopping_.store(true);
    turn_.fetch_add(1);
    turn_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int64_t threads() const { return static_cast<int64_t>(workers_.size()) + 1; }

  // Calls f(piece) once for each piece in [0, pieces), in any order, and returns when all have returned.
  // For one caller at a time; f must not throw.
  template <class F>
  void run(int64_t pieces, const F& f) {
    run_if(pieces > 1, pieces, f);
  }

  // The same, by the caller alone where it is not worth waking others.
  template <class F>
  void run_if(bool worth, int64_t pieces, const F& f) {
    if (workers_.empty() || !worth) {
      for (int64_t i = 0; i < pieces; ++i) f(i);
      return;
    }
    call_ = [](const void* context, int64_t piece) { (*static_cast<const F*>(context))(piece); };
    context_ = &f;
    pieces_.store(pieces, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    left_.store(pieces, std::memory_order_release);
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_all();
    take();
    for (int spins = 0; done_.load(std::memory_order_acquire) != pieces;) {
      if (++spins < kSpins) {
        pause();
      } else {
        const int64_t seen = done_.load(std::memory_order_acquire);
        if (seen != pieces) done_.wait(seen, std::memory_order_acquire);
      }
    }
  }

 private:
  static constexpr int kSpins = 1000;  // about 10 us: between two layers' kernels, not longer

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  void work() {
    uint32_t seen = 0;
    while (!stopping_.load()) {
      uint32_t turn = turn_.load(std::memory_order_acquire);
      for (int spins = 0; turn == seen && spins < kSpins; ++spins) {
        pause();
        turn = turn_.load(std::memory_order_acquire);
      }
      if (turn == seen) {
        turn_.wait(seen, std::memory_order_acquire);
        continue;
      }
      seen = turn;
      take();
    }
  }

  // Whoever has taken a piece has one of the job that runs, since its caller waits for that piece; so one who
  // comes late for a job helps with the next. The last piece goes first.
  void take() {
    int64_t left = left_.load(std::memory_order_acquire);
    while (left > 0) {
      if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) continue;
      call_(context_, left - 1);
      const int64_t pieces = pieces_.load(std::memory_order_relaxed);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) done_.notify_all();
      left = left_.load(std::memory_order_acquire);
    }
  }

  std::vector<std::thread> workers_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> turn_{0};
  std::atomic<int64_t> left_{0};  // pieces that nobody took yet
  std::atomic<int64_t> pieces_{0};
  std::atomic<int64_t> done_{0};
  void (*call_)(const void*, int64_t) = nullptr;
  const void* context_ = nullptr;
};

}  // namespace pillion
