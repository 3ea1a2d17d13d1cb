// A peer for `railweave bench`: MPI_Alltoallv under the same protocol and pattern as the benchmark's own workers.
//
// Rank 0 reads commands from standard input and answers on standard output; it hands them to the others over MPI, polling
// with pauses, so that an idle peer takes no CPU from whoever is measured in the meantime:
//   prepare REPETITION B00 B01 ...   fill the send buffers for this matrix (row by row)  ->  ready
//   go NANOSECONDS                   exchange, starting at this CLOCK_MONOTONIC time     ->  done FIRST_START LAST_END
//   check                            compare every byte received                         ->  ok | wrong RANK SOURCE PLACE
//   quit
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kPrepare, kGo, kCheck, kQuit };

static int rank, world;
static long repetition;
static long* matrix;  // bytes, row = sender
static int *send_counts, *receive_counts, *send_places, *receive_places;
static unsigned char *send_buffer, *receive_buffer;

static void fail(const char* what) {
  fprintf(stderr, "mpi_alltoallv: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void* allocate(size_t bytes) {
  void* memory = malloc(bytes ? bytes : 1);
  if (!memory) fail("out of memory");
  return memory;
}

static uint64_t pattern_key(uint64_t source, uint64_t destination) {
  uint64_t x = (uint64_t)repetition << 40 | source << 20 | destination;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

static uint64_t pattern_word(uint64_t key, long index) { return key + (uint64_t)index * 0x9E3779B97F4A7C15u; }

static void fill(unsigned char* buffer, long bytes, uint64_t key) {
  for (long i = 0; i * 8 < bytes; ++i) {
    const uint64_t word = pattern_word(key, i);
    memcpy(buffer + i * 8, &word, bytes - i * 8 < 8 ? (size_t)(bytes - i * 8) : 8);
  }
}

// Place of the first byte that differs, -1 if none does.
static long first_difference(const unsigned char* buffer, long bytes, uint64_t key) {
  for (long i = 0; i * 8 < bytes; ++i) {
    const uint64_t word = pattern_word(key, i);
    const size_t size = bytes - i * 8 < 8 ? (size_t)(bytes - i * 8) : 8;
    if (memcmp(buffer + i * 8, &word, size) == 0) continue;
    for (size_t b = 0; b < size; ++b) {
      if (buffer[i * 8 + (long)b] != ((const unsigned char*)&word)[b]) return i * 8 + (long)b;
    }
  }
  return -1;
}

static int place(int* counts, int* places, int stride, const long* first) {
  long total = 0;
  for (int peer = 0; peer < world; ++peer) {
    const long bytes = first[(long)peer * stride];
    if (total + bytes > 0x7fffffff) fail("a rank sends or receives 2 GiB or more, which MPI_Alltoallv of MPI 3 cannot");
    counts[peer] = (int)bytes;
    places[peer] = (int)total;
    total += bytes;
  }
  return (int)total;
}

static void prepare(void) {
  free(send_buffer);
  free(receive_buffer);
  send_buffer = allocate((size_t)place(send_counts, send_places, 1, matrix + (long)rank * world));
  receive_buffer = allocate((size_t)place(receive_counts, receive_places, world, matrix + rank));
  for (int peer = 0; peer < world; ++peer)
    fill(send_buffer + send_places[peer], send_counts[peer], pattern_key((uint64_t)rank, (uint64_t)peer));
}

static long now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void exchange(long start_ns, long times[2]) {
  const struct timespec start = {start_ns / 1000000000L, start_ns % 1000000000L};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL);
  times[0] = now_ns();
  MPI_Alltoallv(send_buffer, send_counts, send_places, MPI_BYTE, receive_buffer, receive_counts, receive_places, MPI_BYTE, MPI_COMM_WORLD);
  times[1] = now_ns();
}

// Waits without burning CPU.
static void wait_politely(MPI_Request* request) {
  const struct timespec pause = {0, 2000000};
  for (;;) {
    int done = 0;
    MPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (done) return;
    nanosleep(&pause, NULL);
  }
}

static void spread(void* data, int count) {
  MPI_Request request;
  MPI_Ibcast(data, count, MPI_LONG, 0, MPI_COMM_WORLD, &request);
  wait_politely(&request);
}

static void answer_ready(void) {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  wait_politely(&request);
  if (rank == 0) puts("ready");
}

static void answer_times(long start_ns) {
  long times[2], first, last;
  exchange(start_ns, times);
  MPI_Request requests[2];
  MPI_Ireduce(&times[0], &first, 1, MPI_LONG, MPI_MIN, 0, MPI_COMM_WORLD, &requests[0]);
  MPI_Ireduce(&times[1], &last, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD, &requests[1]);
  wait_politely(&requests[0]);
  wait_politely(&requests[1]);
  if (rank == 0) printf("done %ld %ld\n", first, last);
}

static void answer_check(void) {
  long wrong[3] = {-1, -1, -1};
  for (int peer = 0; peer < world && wrong[0] < 0; ++peer) {
    const long at =
        first_difference(receive_buffer + receive_places[peer], receive_counts[peer], pattern_key((uint64_t)peer, (uint64_t)rank));
    if (at >= 0) {
      wrong[0] = rank;
      wrong[1] = peer;
      wrong[2] = at;
    }
  }
  long* all = rank == 0 ? allocate((size_t)world * sizeof wrong) : NULL;
  MPI_Request request;
  MPI_Igather(wrong, 3, MPI_LONG, all, 3, MPI_LONG, 0, MPI_COMM_WORLD, &request);
  wait_politely(&request);
  if (rank != 0) return;
  const long* found = NULL;
  for (int r = 0; r < world && !found; ++r) {
    if (all[r * 3] >= 0) found = all + (long)r * 3;
  }
  if (found)
    printf("wrong %ld %ld %ld\n", found[0], found[1], found[2]);
  else
    puts("ok");
  free(all);
}

// Rank 0: the next command as numbers.
static void read_command(long command[2]) {
  char word[16];
  command[0] = kQuit;
  if (scanf("%15s", word) != 1 || strcmp(word, "quit") == 0) return;
  if (strcmp(word, "prepare") == 0) {
    command[0] = kPrepare;
    if (scanf("%ld", &command[1]) != 1) fail("expected a repetition");
    for (long i = 0; i < (long)world * world; ++i) {
      if (scanf("%ld", &matrix[i]) != 1) fail("expected a matrix");
    }
  } else if (strcmp(word, "go") == 0) {
    command[0] = kGo;
    if (scanf("%ld", &command[1]) != 1) fail("expected a time");
  } else if (strcmp(word, "check") == 0) {
    command[0] = kCheck;
  } else {
    fail("unknown command");
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  matrix = allocate((size_t)world * (size_t)world * sizeof *matrix);
  send_counts = allocate((size_t)world * sizeof(int));
  receive_counts = allocate((size_t)world * sizeof(int));
  send_places = allocate((size_t)world * sizeof(int));
  receive_places = allocate((size_t)world * sizeof(int));
  for (;;) {
    long command[2] = {kQuit, 0};
    if (rank == 0) read_command(command);
    spread(command, 2);
    if (command[0] == kQuit) break;
    if (command[0] == kPrepare) {
      repetition = command[1];
      spread(matrix, world * world);
      prepare();
      answer_ready();
    } else if (command[0] == kGo) {
      answer_times(command[1]);
    } else {
      answer_check();
    }
    fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}
