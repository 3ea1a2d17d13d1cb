/* Receives into memory that mates cannot map (docs/cuda.md, "Memory that cannot be mapped"): a message lands in a buffer of the
 * communicator's, and a copy behind the kernel brings it from there to the program's memory.
 *
 * A station is a rank in a communicator: station s has rank s & 1, its peer is s ^ 1. Its operations are queued one after another: a
 * kernel, the copies of what it received into the buffer (Staging::copies), an event, for which the next one waits, whatever its stream.
 * Of the kernels' roles only what matters here: a running kernel grants each of its receives a place, the source's writes there, and a
 * kernel ends when all its messages are over. What finds no buffer yet, or no room in it, comes through slots: the receiver's kernel itself
 * puts it into the program's memory. The buffer has ROOM places; a thread provides it some time after it is first wanted.
 *
 * PROGRAM 1: rank 0 sends, rank 1 receives in three operations, each on another stream than the one before.
 *         2: two communicators, each a message. Each rank queues the one first in which it receives, so they do in opposite order, each
 *            communicator on a stream of its own. SHARED_QUEUE: both streams go through one hardware queue of the GPU, in which a copy
 *            that waits for its kernel holds up what is behind it.
 *
 * Checked: a copy reads the bytes of its own message and none that are being written; nothing is read from a buffer that is not there, or
 * no more; every operation ends, and the program has all its bytes.
 */
#ifndef PROGRAM
#define PROGRAM 1
#endif
#ifndef ROOM
#define ROOM 2
#endif
#define JUNK 99
#define QUEUED 1
#define RUNS   2
#define ENDED  3    /* its kernel */
#define DONE   4    /* its copies, and so the event */
#define NOWHERE 9

/* message m of operation `op` of a pair: those from first[op] on, to the next one's first */
#if PROGRAM == 1
#define NS 2
#define OPS 3
#define NM 5
byte first[OPS + 1] = { 0, 1, 4, 5 };
#define SENDS(s)    ((s) == 0)
#define RECEIVES(s) ((s) == 1)
#define IN_FRONT(s) s
#else
#define NS 4
#define OPS 1
#define NM 1
byte first[OPS + 1] = { 0, 1 };
#define SENDS(s)    ((s) == 1 || (s) == 2)
#define RECEIVES(s) (!SENDS(s))
/* rank 0 queues communicator 0 first, rank 1 communicator 1: what they receive in */
#define IN_FRONT(s) (((s) >> 1) == ((s) & 1) -> (s) : (s) ^ 2)
#endif

byte phase[NS * OPS];
byte place[NS * NM];                    /* of a received message: in the buffer, or NOWHERE */
bit  granted[NS * NM], came[NS * NM];   /* likewise */
byte user[NS * NM];                     /* the program's memory */
byte buffer[NS * ROOM];
bit  wanted[NS], memory[NS], has_buffer[NS], freed[NS];

#define AT(s, op) ((s) * OPS + (op))
#define OF(s, m)  ((s) * NM + (m))
#define TAG(s, m) (1 + OF(s, m))
#define PEER (s ^ 1)
#define CELL(s, m) buffer[(s) * ROOM + place[OF(s, m)]]

#ifdef MUT_EVENT_BEFORE_COPIES
#define EVENT ENDED
#else
#define EVENT DONE
#endif
#ifdef MUT_SAME_PLACE
#define NEXT_PLACE 0
#else
#define NEXT_PLACE taken
#endif
#ifdef MUT_ROOM_UNCHECKED
#define HAS_ROOM true
#else
#define HAS_ROOM (taken < ROOM)
#endif
/* A kernel begins and is out of the queue's way; what waits for it is not. */
#ifdef SHARED_QUEUE
#define QUEUE_LETS (IN_FRONT(s) == s || phase[AT(IN_FRONT(s), 0)] >= ENDED)
#else
#define QUEUE_LETS true
#endif

/* Communicator::enqueue, which waits for nobody: place() for each message, and all is queued. */
proctype Host(byte s)
{ byte op, m, taken;
  bit there;
  do
  :: atomic { op < OPS -> taken = 0; m = first[op] }
     do
     :: atomic { m < first[op + 1] && RECEIVES(s) -> there = has_buffer[s] }
        atomic {
          if
          :: there && HAS_ROOM ->
               assert(memory[s]);
               assert(taken < ROOM);
               place[OF(s, m)] = NEXT_PLACE; taken++
          :: else -> place[OF(s, m)] = NOWHERE; wanted[s] = 1
          fi;
          m++; there = 0 }
     :: atomic { m == first[op + 1] || !RECEIVES(s) -> phase[AT(s, op)] = QUEUED; op++; m = 0; break }
     od
  :: atomic { op == OPS && RECEIVES(s) -> break }
  :: atomic { op == OPS && !RECEIVES(s) -> goto done }
  od;
  /* The communicator is destroyed when its kernels have ended, which is what the host hears of; cudaFree waits for the copies. */
  atomic { phase[AT(s, OPS - 1)] >= ENDED };
#ifndef MUT_FREES_BESIDE_COPIES
  atomic { phase[AT(s, OPS - 1)] == DONE };
#endif
  atomic { freed[s] = 1 };
done:
  skip
}

/* The thread that maps: Communicator::provide_staging, Staging::provide. */
proctype Mapper(byte s)
{
end:
  atomic { wanted[s] && !has_buffer[s] -> skip };
#ifdef MUT_PROVIDED_BEFORE_MEMORY
  atomic { has_buffer[s] = 1 };
  atomic { memory[s] = 1 }
#else
  atomic { memory[s] = 1 };
  atomic { has_buffer[s] = 1 }
#endif
}

proctype Kernels(byte s)
{ byte op, m, k;
  do
  :: atomic { op < OPS && phase[AT(s, op)] == QUEUED && (op == 0 || phase[AT(s, op - 1)] >= EVENT) && QUEUE_LETS ->
       phase[AT(s, op)] = RUNS; m = first[op]; k = m;
       do
       :: k < first[op + 1] && RECEIVES(s) -> granted[OF(s, k)] = 1; k++
       :: else -> break
       od; k = 0 }
     /* its sends, in their order; others change nothing here */
     do
     :: atomic { SENDS(s) && m < first[op + 1] && granted[OF(PEER, m)] ->
          if :: place[OF(PEER, m)] != NOWHERE -> assert(memory[PEER] && !freed[PEER]); CELL(PEER, m) = JUNK :: else fi }
        atomic {
          if
          :: place[OF(PEER, m)] != NOWHERE -> CELL(PEER, m) = TAG(PEER, m)
          :: else -> user[OF(PEER, m)] = TAG(PEER, m)
          fi;
          came[OF(PEER, m)] = 1; m++ }
     :: atomic { !SENDS(s) || m == first[op + 1] -> m = first[op]; break }
     od;
     do
     :: atomic { RECEIVES(s) && m < first[op + 1] && came[OF(s, m)] -> m++ }
     :: atomic { !RECEIVES(s) || m == first[op + 1] -> phase[AT(s, op)] = (RECEIVES(s) -> ENDED : DONE); op++; m = 0; break }
     od
  :: atomic { op == OPS -> break }
  od
}

/* In the stream behind its kernel. */
proctype Copies(byte s)
{ byte op, m;
  do
  :: atomic { op < OPS && phase[AT(s, op)] == ENDED -> m = first[op] }
     do
     :: atomic { m < first[op + 1] && place[OF(s, m)] == NOWHERE -> m++ }
     :: atomic { m < first[op + 1] && place[OF(s, m)] != NOWHERE -> assert(!freed[s]); assert(CELL(s, m) == TAG(s, m)) }
        atomic { assert(!freed[s]); assert(CELL(s, m) == TAG(s, m)); user[OF(s, m)] = TAG(s, m); m++ }
     :: atomic { m == first[op + 1] -> phase[AT(s, op)] = DONE; op++; m = 0; break }
     od
  :: atomic { op == OPS -> break }
  od
}

proctype Monitor()
{ byte s, m;
  atomic { timeout ->
    do
    :: s < NS ->
         assert(phase[AT(s, OPS - 1)] == DONE);
         m = 0;
         do :: m < NM && RECEIVES(s) -> assert(user[OF(s, m)] == TAG(s, m)); m++ :: else -> break od;
         s++
    :: else -> break
    od }
}

init
{ byte s;
  atomic {
    do
    :: s < NS ->
#if PROGRAM == 2
         memory[s] = 1; has_buffer[s] = 1;
#endif
         run Host(s); run Kernels(s);
         if :: RECEIVES(s) -> run Mapper(s); run Copies(s) :: else fi;
         s++
    :: else -> break
    od;
    run Monitor() }
}
