#include "stand_in_cuda.hpp"

#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace stand_in {

class Graph {
 public:
  std::vector<std::function<void()>> work;
};

namespace {

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    push(nullptr);
    thread_.join();
  }

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (captured_ != nullptr && work != nullptr) {
      captured_->work.push_back(std::move(work));
      return;
    }
    queue_.push_back(std::move(work));
    changed_.notify_one();
  }

  void begin_capture() {
    const std::lock_guard lock(mutex_);
    captured_ = std::make_shared<Graph>();
  }
  std::shared_ptr<Graph> end_capture() {
    const std::lock_guard lock(mutex_);
    return std::exchange(captured_, nullptr);
  }
  bool capturing() {
    const std::lock_guard lock(mutex_);
    return captured_ != nullptr;
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (work == nullptr) return;
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::shared_ptr<Graph> captured_;
  std::thread thread_;
};

thread_local int current_device = 0;
std::mutex mutex;
// Default streams live until the process ends; their threads are not joined then, as work may hang in them.
std::map<int, Stream*>& default_streams = *new std::map<int, Stream*>();

Stream& stream_of(cudaStream_t stream, int device) {
  if (stream != nullptr) return *reinterpret_cast<Stream*>(stream);
  const std::lock_guard lock(mutex);
  Stream*& entry = default_streams[device];
  if (entry == nullptr) entry = new Stream();
  return *entry;
}

}  // namespace

void set_device(int device) { current_device = device; }
int device() { return current_device; }

cudaStream_t make_stream() { return reinterpret_cast<cudaStream_t>(new Stream()); }
void destroy_stream(cudaStream_t stream) { delete reinterpret_cast<Stream*>(stream); }

void launch(cudaStream_t stream, int device, std::function<void()> work) { stream_of(stream, device).push(std::move(work)); }

void synchronize(cudaStream_t stream, int device) {
  std::promise<void> reached;
  launch(stream, device, [&] { reached.set_value(); });
  reached.get_future().wait();
}

void wait_for(cudaStream_t waiting, cudaStream_t stream, int device) {
  auto reached = std::make_shared<std::promise<void>>();
  launch(stream, device, [reached] { reached->set_value(); });
  launch(waiting, device, [reached] { reached->get_future().wait(); });
}

void begin_capture(cudaStream_t stream) { stream_of(stream, 0).begin_capture(); }
std::shared_ptr<Graph> end_capture(cudaStream_t stream) { return stream_of(stream, 0).end_capture(); }
bool capturing(cudaStream_t stream) { return stream != nullptr && stream_of(stream, 0).capturing(); }

void launch(const Graph& graph, cudaStream_t stream) {
  for (const auto& work : graph.work) launch(stream, 0, work);
}

}  // namespace stand_in
