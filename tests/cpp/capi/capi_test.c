/* The C ABI from C: two ranks as processes exchange bytes through groups and all_to_all_v; errors have codes and texts. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "railweave/railweave.h"

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, railweave_last_error()); \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

static void run_rank(uint32_t rank, const char* rendezvous) {
  enum { kBytes = 700001 };
  const railweave_setting settings[] = {{"policy", "single-path"}, {"chunk_bytes", "64KiB"}};
  railweave_exchange* exchange = NULL;
  railweave_group* group = NULL;
  railweave_operation* operation = NULL;
  unsigned char* out = malloc(2 * kBytes);
  unsigned char* in = malloc(2 * kBytes);
  const uint64_t counts[2] = {kBytes, kBytes}, offsets[2] = {0, kBytes};
  const uint64_t differ[2] = {kBytes - 1, kBytes - 1};
  railweave_status status = RAILWEAVE_OK;
  int ended = 0, child_status = 0;
  pid_t child;
  CHECK(out != NULL && in != NULL);
  CHECK(railweave_exchange_create(rank, 2, rendezvous, NULL, settings, 2, &exchange) == RAILWEAVE_OK);
  for (size_t i = 0; i < 2 * kBytes; ++i) out[i] = (unsigned char)(i * 31 + rank);

  CHECK(railweave_group_begin(exchange, 7, &group) == RAILWEAVE_OK);
  CHECK(railweave_send(group, out, kBytes, 1 - rank) == RAILWEAVE_OK);
  CHECK(railweave_recv(group, in, kBytes, 1 - rank) == RAILWEAVE_OK);
  CHECK(railweave_send(group, out, 1, 2) == RAILWEAVE_ERROR_EXCHANGE);
  CHECK(strstr(railweave_last_error(), "rank 2") != NULL);
  CHECK(railweave_group_end(group, &operation) == RAILWEAVE_OK);
  while (!ended) CHECK(railweave_test(operation, &ended) == RAILWEAVE_OK);
  CHECK(railweave_wait(operation) == RAILWEAVE_OK);
  for (size_t i = 0; i < kBytes; ++i) CHECK(in[i] == (unsigned char)(i * 31 + 1 - rank));

  CHECK(railweave_all_to_all_v(exchange, out, counts, offsets, in, counts, offsets, 0, &operation) == RAILWEAVE_OK);
  CHECK(railweave_wait(operation) == RAILWEAVE_OK);
  for (uint32_t peer = 0; peer < 2; ++peer) {
    for (size_t i = 0; i < kBytes; ++i) CHECK(in[peer * kBytes + i] == (unsigned char)((rank * kBytes + i) * 31 + peer));
  }

  CHECK(railweave_all_to_all_v(exchange, NULL, counts, offsets, in, counts, offsets, 0, &operation) == RAILWEAVE_ERROR_ARGUMENT);
  CHECK(railweave_all_to_all_v(exchange, out, counts, offsets, NULL, counts, offsets, 0, &operation) == RAILWEAVE_ERROR_ARGUMENT);
  CHECK(railweave_all_to_all_v(exchange, out, counts, offsets, in, differ, offsets, 0, &operation) == RAILWEAVE_ERROR_EXCHANGE);
  CHECK(strstr(railweave_last_error(), "to itself") != NULL);

  /* Sizes that differ fail the operation on both ends, and end it. */
  CHECK(railweave_group_begin(exchange, 0, &group) == RAILWEAVE_OK);
  if (rank == 0)
    CHECK(railweave_send(group, out, kBytes, 1) == RAILWEAVE_OK);
  else
    CHECK(railweave_recv(group, in, kBytes - 1, 0) == RAILWEAVE_OK);
  CHECK(railweave_group_end(group, &operation) == RAILWEAVE_OK);
  for (ended = 0; !ended;) status = railweave_test(operation, &ended);
  CHECK(status == RAILWEAVE_ERROR_EXCHANGE);
  CHECK(railweave_wait(operation) == RAILWEAVE_ERROR_EXCHANGE);

  child = fork();
  if (child == 0) { /* has no engine thread */
    CHECK(railweave_all_to_all_v(exchange, out, counts, offsets, in, counts, offsets, 0, &operation) == RAILWEAVE_ERROR_EXCHANGE);
    CHECK(strstr(railweave_last_error(), "forked") != NULL);
    _exit(0);
  }
  CHECK(waitpid(child, &child_status, 0) == child && child_status == 0);
  railweave_exchange_destroy(exchange);
  free(out);
  free(in);
}

int main(void) {
  char directory[] = "/tmp/railweave-capi-XXXXXX";
  char rendezvous[64];
  const railweave_setting unknown = {"colour", "blue"};
  railweave_exchange* exchange = NULL;
  pid_t child;
  int status = 0;
  CHECK(mkdtemp(directory) != NULL);
  snprintf(rendezvous, sizeof rendezvous, "file://%s", directory);
  CHECK(railweave_exchange_create(0, 1, rendezvous, NULL, &unknown, 1, &exchange) == RAILWEAVE_ERROR_SETTINGS);
  CHECK(strstr(railweave_last_error(), "colour") != NULL);
  CHECK(railweave_exchange_create(0, 1, NULL, NULL, NULL, 0, &exchange) == RAILWEAVE_ERROR_ARGUMENT);
  CHECK(railweave_exchange_create(0, 1, "ftp://x", NULL, NULL, 0, &exchange) == RAILWEAVE_ERROR_BOOTSTRAP);
  child = fork();
  run_rank(child == 0 ? 1 : 0, rendezvous);
  if (child == 0) return 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(rmdir(directory) == 0);
  return 0;
}
