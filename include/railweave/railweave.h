/* Railweave's C ABI: exchanges between ranks. See docs/engine.md.
 *
 * Functions return RAILWEAVE_OK or an error code; railweave_last_error() then has the text, until the thread's next call. Handles are
 * opaque. A handle may be used by one thread at a time; different handles by different threads. */
#ifndef RAILWEAVE_RAILWEAVE_H
#define RAILWEAVE_RAILWEAVE_H

/* NOLINTBEGIN(modernize-deprecated-headers): C programs include this. */
#include <stddef.h>
#include <stdint.h>
/* NOLINTEND(modernize-deprecated-headers) */

#ifdef __cplusplus
extern "C" {
#endif

#define RAILWEAVE_API __attribute__((visibility("default")))

typedef enum railweave_status {
  RAILWEAVE_OK = 0,
  RAILWEAVE_ERROR_ARGUMENT = 1,  /* a null pointer, or a fabric that cannot be read */
  RAILWEAVE_ERROR_SETTINGS = 2,  /* an unknown setting, or a value that it cannot have */
  RAILWEAVE_ERROR_BOOTSTRAP = 3, /* the ranks could not be brought together */
  RAILWEAVE_ERROR_TRANSPORT = 4, /* the network library */
  RAILWEAVE_ERROR_RANK_DIED = 5, /* or has left, or failed and is waited for; railweave_last_rank() says which */
  RAILWEAVE_ERROR_EXCHANGE = 6,  /* a rank, size or use that cannot be, or an operation failed otherwise */
  RAILWEAVE_ERROR_INTERNAL = 7   /* out of memory and the like */
} railweave_status;

typedef struct railweave_exchange railweave_exchange;
typedef struct railweave_group railweave_group;
typedef struct railweave_operation railweave_operation;

/* A setting by its name, as in docs/settings.md. */
typedef struct railweave_setting {
  const char* name;
  const char* value;
} railweave_setting;

/* Text of this thread's last error, never NULL. */
RAILWEAVE_API const char* railweave_last_error(void);
/* The rank of this thread's last RAILWEAVE_ERROR_RANK_DIED. */
RAILWEAVE_API uint32_t railweave_last_rank(void);

/* `fabric_json` may be NULL: a fabric is derived. RAILWEAVE_* variables count, `settings` override them. */
RAILWEAVE_API railweave_status railweave_exchange_create(uint32_t rank, uint32_t world, const char* rendezvous, const char* fabric_json,
                                                         const railweave_setting* settings, size_t setting_count,
                                                         railweave_exchange** exchange);
/* Closes (see docs/engine.md) and frees; NULL is allowed. Groups must have ended before. */
RAILWEAVE_API void railweave_exchange_destroy(railweave_exchange* exchange);

/* Counts and offsets in bytes, one for each rank. */
RAILWEAVE_API railweave_status railweave_all_to_all_v(railweave_exchange* exchange, const void* send, const uint64_t* send_counts,
                                                      const uint64_t* send_offsets, void* recv, const uint64_t* recv_counts,
                                                      const uint64_t* recv_offsets, uint32_t communicator, railweave_operation** operation);
RAILWEAVE_API railweave_status railweave_group_begin(railweave_exchange* exchange, uint32_t communicator, railweave_group** group);
RAILWEAVE_API railweave_status railweave_send(railweave_group* group, const void* data, uint64_t bytes, uint32_t peer);
RAILWEAVE_API railweave_status railweave_recv(railweave_group* group, void* data, uint64_t bytes, uint32_t peer);
/* Posts the group and frees it, also when it fails. */
RAILWEAVE_API railweave_status railweave_group_end(railweave_group* group, railweave_operation** operation);

/* Waits for the end and frees the operation, also when it failed. */
RAILWEAVE_API railweave_status railweave_wait(railweave_operation* operation);
/* `ended` becomes 1 when the operation has ended, also when it failed, which the status says; it stays to be freed by railweave_wait. */
RAILWEAVE_API railweave_status railweave_test(railweave_operation* operation, int* ended);

#ifdef __cplusplus
}
#endif

#endif
