/* The C ABI between a shim (the NCCL shim, for one) and a device library: librailweave_cuda.so, which moves bytes between GPUs.
 *
 * The shim loads the library with dlopen and takes railweave_cuda_api from it; nothing else of it is linked. Every struct that crosses
 * begins with its size as its writer knows it: a reader takes no field beyond that size, and a field is only ever added at the end.
 * RAILWEAVE_CUDA_VERSION changes when the meaning of something existing does.
 *
 * Threads: calls on different communicators may run at the same time. enqueue and join calls that share a communicator are made one
 * after another by the caller; async_error, counters, describe, nics, peers, abort, register_buffer and deregister_buffer may run beside
 * any call except destroy. In a forked child of the process that made a communicator abort, drain and destroy do nothing.
 *
 * Functions return RAILWEAVE_OK or an error code of railweave.h; last_error then has the text, until the thread's next call. */
#ifndef RAILWEAVE_CUDA_H
#define RAILWEAVE_CUDA_H

/* NOLINTBEGIN(modernize-deprecated-headers): C programs include this. */
#include <stddef.h>
#include <stdint.h>
/* NOLINTEND(modernize-deprecated-headers) */

#include "railweave/railweave.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RAILWEAVE_CUDA_VERSION 1u

/* A rank of a communicator: lives in one process and on one device; a process may hold several ranks of the same communicator. */
typedef struct railweave_cuda_communicator railweave_cuda_communicator;
/* A cudaStream_t, the special handles (legacy, per thread) among them. */
typedef void* railweave_cuda_stream;

typedef struct railweave_cuda_config {
  size_t size; /* sizeof(railweave_cuda_config) */
  uint32_t rank;
  uint32_t world;
  int32_t device; /* CUDA ordinal in this process */
  /* Of short messages to or from a peer: those for which an operation may take a block, so that no kernel has more than NCCL's, which over
   * several nodes has one for each other rank; 0: as many as help. */
  uint32_t channel_bytes;
  const char* rendezvous; /* tcp://HOST:PORT: rank 0 listens there; the port is free on its host when create is called */
  /* Settings of docs/settings.md by name; they override RAILWEAVE_* variables, and those what this machine was calibrated to. */
  const railweave_setting* settings;
  size_t setting_count;
  /* Told what was decided and why, a line each, once each, on any thread, until destroy has returned; may be NULL. */
  void (*log)(void* context, const char* text);
  void* log_context;
  /* Told, as log is and with its context, what an operator should hear without having asked; may be NULL, then log is told. */
  void (*warn)(void* context, const char* text);
  uint32_t most_blocks; /* of an operation's kernel, whatever the settings say; 0: as many as they say */
} railweave_cuda_config;

typedef enum railweave_cuda_kind { RAILWEAVE_CUDA_SEND = 0, RAILWEAVE_CUDA_RECV = 1 } railweave_cuda_kind;

/* A message to or from a peer. The k-th send of a rank to another on a communicator meets the k-th receive there; k counts in the order
 * of enqueue calls, and inside one call in the order of the list. In a stream that is being captured k counts when the graph runs. */
typedef struct railweave_cuda_transfer {
  size_t size; /* sizeof(railweave_cuda_transfer); the list's stride as well */
  railweave_cuda_communicator* communicator;
  uint32_t kind;  /* railweave_cuda_kind */
  uint32_t peer;  /* the own rank too: the k-th send to oneself meets the k-th receive from oneself */
  void* data;     /* device memory, or whatever else the device can read or write; sends only read it */
  uint64_t bytes; /* at least 1 */
} railweave_cuda_transfer;

typedef struct railweave_cuda_counters {
  size_t size;         /* sizeof(railweave_cuda_counters), set by the caller */
  uint64_t enqueued;   /* messages handed to enqueue (captured ones count when they have run) */
  uint64_t completed;  /* messages that have ended; a stall is enqueued > completed, or replays, while nothing moves */
  uint64_t bytes_sent; /* of completed sends, each byte once */
  uint64_t bytes_received;
  uint64_t bytes_by_kind[5]; /* sent so far, by PathKind: direct, relay, host, rail, cross_rail; repeated ones included */
  uint64_t replays;          /* 1: a graph with operations of this communicator runs, which count when they have ended */
} railweave_cuda_counters;

/* A NIC of the rank's node. */
typedef struct railweave_cuda_nic {
  size_t size; /* sizeof(railweave_cuda_nic), set by the caller in the first; the list's stride as well */
  char name[64];
  uint64_t bytes_per_second; /* 0: unknown */
  uint64_t bytes_sent;       /* by this rank so far; repeated ones included */
  uint32_t owner;            /* the rank that serves it */
  uint32_t links;            /* to NICs of other nodes; 0 where the communicator ends */
  uint32_t links_down;       /* of those */
  uint32_t reserved;
  char down[512]; /* what is at the other end of those that are down, a line each, as many as have room */
} railweave_cuda_nic;

/* A rank with which messages have been exchanged; the own one, too. Short ones are counted while their operation runs, before it ends. */
typedef struct railweave_cuda_peer {
  size_t size; /* sizeof(railweave_cuda_peer), set by the caller in the first; the list's stride as well */
  uint32_t peer;
  uint32_t reserved;
  uint64_t bytes_sent; /* of messages to it that have ended, each byte once; captured ones count when they run */
  uint64_t bytes_received;
} railweave_cuda_peer;

typedef struct railweave_cuda_api {
  size_t size; /* sizeof(railweave_cuda_api) of the library */
  uint32_t version;
  uint32_t reserved;

  /* Text of this thread's last error, never NULL. */
  const char* (*last_error)(void);

  /* Whether this process can serve on that device (driver, architecture, MIG ...). Asks nobody else, changes nothing. */
  railweave_status (*probe)(int32_t device);

  /* Brings the ranks together: all call it, with the same world and rendezvous. May block in that, for at most the setting bootstrap_ms,
   * so it is called on a thread of the shim's own. After an error nothing is left behind. Memory, handles, kernels: everything that could
   * make a later call wait for a device is set up here. */
  railweave_status (*create)(const railweave_cuda_config* config, railweave_cuda_communicator** communicator);

  /* Queues all transfers as one operation: one launch, on streams[0], which starts after what is queued on every listed stream and
   * before what is queued on them later. All communicators of the transfers are on
   * one device, and the special stream handles mean that device's. Never waits for a peer or
   * for the device. Legal while the streams are being captured. On error nothing was queued and no message was numbered, or
   * the communicators of the transfers have ended (async_error says why). */
  railweave_status (*enqueue)(const railweave_cuda_transfer* transfers, size_t count, const railweave_cuda_stream* streams,
                              size_t stream_count);

  /* RAILWEAVE_OK, or what ended the communicator: a rank that died, left or was aborted, a transport, sizes that differ at the two ends.
   * Does not block. */
  railweave_status (*async_error)(railweave_cuda_communicator* communicator);

  /* Ends everything that is running or queued on it: kernels leave, streams go on, buffers are not touched afterwards. Does not block.
   * Later enqueue calls fail. Communicators that share an operation which this ends have ended, too. */
  railweave_status (*abort)(railweave_cuda_communicator* communicator);

  /* Waits until what was enqueued has ended here, however long its peers take, and tells them that this rank leaves; waits for none of
   * them to leave. Every rank calls it or destroy, in any order. */
  railweave_status (*drain)(railweave_cuda_communicator* communicator);

  /* drain; then, for at most the setting drain_ms, lends slots and NICs until no peer in another process needs them; then frees everything.
   * NULL is allowed. Freeing waits for kernels, so beside operations of other communicators on the device memory is freed when none is
   * under way. */
  void (*destroy)(railweave_cuda_communicator* communicator);

  /* Memory that will be used often: mapped ahead of its first use, as long as it is among the rank's 1,024 newest buffers. A hint;
   * transfers need not be registered. `handle` goes to deregister, before the memory is freed. */
  railweave_status (*register_buffer)(railweave_cuda_communicator* communicator, void* data, uint64_t bytes, void** handle);
  railweave_status (*deregister_buffer)(railweave_cuda_communicator* communicator, void* handle);

  railweave_status (*counters)(railweave_cuda_communicator* communicator, railweave_cuda_counters* counters);

  /* What the communicator waits for, a line each: message, chunk, path, peer, state. Writes at most `bytes` with a final 0 and returns
   * the length that the whole text has. Works while kernels wait: it copies words from the GPU, and goes without them when that does not
   * answer within half a second. */
  size_t (*describe)(railweave_cuda_communicator* communicator, char* text, size_t bytes);

  /* The NICs of the rank's node, always in one order: writes at most `count` and returns how many there are, none where all ranks are of
   * one node. `nics` may be NULL with a count of 0. */
  size_t (*nics)(railweave_cuda_communicator* communicator, railweave_cuda_nic* nics, size_t count);

  /* Makes streams of the communicator's device wait for each other: what is queued on any of them from now on starts after what is queued
   * on all of them. Legal while they are being captured, all into one graph. */
  railweave_status (*join)(railweave_cuda_communicator* communicator, const railweave_cuda_stream* streams, size_t stream_count);

  /* From now on `tell` is called for each operation that enqueue has queued, before that returns: with a line for people that says which
   * kernel it has and why so many blocks, and over which path each of its messages goes. `text` is good until `tell` returns. NULL: no
   * more. */
  void (*explain)(void (*tell)(const char* text));

  /* The ranks with which anything has been moved by the time of the newest call of counters, by number: writes at most `count` and returns
   * how many there are. `peers` may be NULL with a count of 0. */
  size_t (*peers)(railweave_cuda_communicator* communicator, railweave_cuda_peer* peers, size_t count);
} railweave_cuda_api;

/* The library's one entry, found by dlsym("railweave_cuda_entry"): the table for that version, NULL when it does not have it. */
RAILWEAVE_API const railweave_cuda_api* railweave_cuda_entry(uint32_t version);
typedef const railweave_cuda_api* (*railweave_cuda_entry_function)(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif
