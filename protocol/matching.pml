/* Matching, grants and slots on one node: docs/protocol.md §2, §3 (slots, rings), §5, §6, §8.
 *
 * Three ranks. Each has a program, which posts operations and waits for them, and one worker, the engine thread, which executes all
 * roles: pull, grant, mail, push. A role does what it can and returns; an option of the worker's loop whose guard does not hold is a
 * role with nothing to do. Copies are steps of their own, so other ranks run in between. Every pair has one slot at each owner, and
 * rings hold one record, so that everything that could be full is full.
 *
 * PROGRAM 1: groups differ by rank: what one rank posts as one operation another posts as two.
 *         2: two communicators, used in opposite order by the two ranks; the third is an idle relay.
 *         3: a receiver that comes late: it posts only after messages that share the sender with its own have arrived elsewhere.
 *         4: several messages of one pair in one operation there, in two here; the third rank never calls.
 *         5: two ranks exchange; the third never calls.
 * A path of a chunk is a slot at the destination or at the third rank, chosen anew for each chunk.
 */
#ifndef PROGRAM
#define PROGRAM 1
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef FIRST
#define FIRST 1                 /* chunks of a receive's first grant; the rest once one has come */
#endif
#define NRANKS 3
#define JUNK 99
#define NONE 9

#if PROGRAM == 1
#define NM 4
byte src[NM] = { 0, 1, 0, 2 };
byte dst[NM] = { 1, 0, 2, 1 };
byte comm[NM] = { 0, 0, 0, 0 };
#elif PROGRAM == 2
#define NM 4
byte src[NM] = { 0, 1, 0, 1 };
byte dst[NM] = { 1, 0, 1, 0 };
byte comm[NM] = { 0, 0, 1, 1 };
#elif PROGRAM == 3
#define NM 3
byte src[NM] = { 0, 0, 2 };
byte dst[NM] = { 1, 2, 1 };
byte comm[NM] = { 0, 0, 0 };
#elif PROGRAM == 4
#define NM 2
byte src[NM] = { 0, 0 };
byte dst[NM] = { 1, 1 };
byte comm[NM] = { 0, 0 };
#else
#define NM 2
byte src[NM] = { 0, 1 };
byte dst[NM] = { 1, 0 };
byte comm[NM] = { 0, 0 };
#endif

#define TAG(m, c) ((m) * 4 + (c) + 1)
#define P(a, b) ((a) * NRANKS + (b))
#if NM == 2
#define EACH_M(F) F(0) F(1)
#define EACH_MM(F) F(0, 0) F(0, 1) F(1, 0) F(1, 1)
#elif NM == 3
#define EACH_M(F) F(0) F(1) F(2)
#define EACH_MM(F) F(0, 0) F(1, 1) F(2, 2) F(0, 1) F(1, 0)
#else
#define EACH_M(F) F(0) F(1) F(2) F(3)
#define EACH_MM(F) F(0, 0) F(1, 1) F(2, 2) F(3, 3) F(0, 2) F(2, 0) F(1, 3) F(3, 1)
#endif

/* numbers: per (communicator, source, destination), on each side */
byte sends_posted[2 * NRANKS * NRANKS], receives_posted[2 * NRANKS * NRANKS];
byte operations[NRANKS];
byte send_key[NM], receive_key[NM];     /* 0: not posted */
byte grants_sent[NM];                   /* destination: chunks granted */
byte grants_kept[NM];                   /* source: chunks it may send, by the receive that granted */
byte next[NM];                          /* source: next chunk */
byte bits[NM];                          /* destination: chunks that came, as a mask */
byte arrived[NM];
byte user[NM * CHUNKS];
bit  sent[NM], received[NM];

byte slot_flag[NRANKS * NRANKS];        /* of owner, for writer */
byte slot_bytes[NRANKS * NRANKS];
chan ring[NRANKS * NRANKS] = [1] of { byte, byte, byte, byte };  /* writer, reader: receive, chunk, owner, turn */
chan mail[NRANKS * NRANKS] = [1] of { byte, byte };              /* writer, reader: receive, chunks granted */

#if defined(MUT_OPERATION_NUMBER)
#define KEY(rank, m, counter) (operations[rank] + 1)
#elif defined(MUT_NO_COMMUNICATOR)
#define KEY(rank, m, counter) (counter[P(src[m], dst[m])] + 1)
#else
#define KEY(rank, m, counter) (comm[m] * 8 + counter[comm[m] * 9 + P(src[m], dst[m])] + 1)
#endif
#if defined(MUT_NO_COMMUNICATOR)
#define COUNT(m, counter) counter[P(src[m], dst[m])]++
#else
#define COUNT(m, counter) counter[comm[m] * 9 + P(src[m], dst[m])]++
#endif
#define SEND(m)    send_key[m] = KEY(src[m], m, sends_posted); COUNT(m, sends_posted)
#define RECEIVE(m) receive_key[m] = KEY(dst[m], m, receives_posted); COUNT(m, receives_posted)
#define POSTED(rank) operations[rank]++

/* a message of an operation posted earlier by this rank is unfinished */
#ifdef MUT_ONE_OPERATION_AT_A_TIME
byte order_of_send[NM], order_of_receive[NM];
#define EARLIER(rank, order, m) ((src[m] == rank && send_key[m] != 0 && order_of_send[m] < order && !sent[m]) || \
    (dst[m] == rank && receive_key[m] != 0 && order_of_receive[m] < order && !received[m]))
#define TURN(rank, order) !(EARLIER(rank, order, 0) || EARLIER(rank, order, 1) || EARLIER(rank, order, 2) || EARLIER(rank, order, 3))
#define SEND_TURN(m) TURN(src[m], order_of_send[m])
#define RECEIVE_TURN(m) TURN(dst[m], order_of_receive[m])
#define NOTE_SEND(m) order_of_send[m] = operations[src[m]];
#define NOTE_RECEIVE(m) order_of_receive[m] = operations[dst[m]];
#else
#define SEND_TURN(m) true
#define RECEIVE_TURN(m) true
#define NOTE_SEND(m)
#define NOTE_RECEIVE(m)
#endif

/* ---- programs ------------------------------------------------------------------------------------------------------------ */

proctype Program(byte rank)
{
#if PROGRAM == 1
  if
  :: rank == 0 -> atomic { SEND(0); RECEIVE(1); SEND(2); POSTED(0) } sent[0] && received[1] && sent[2]
  :: rank == 1 -> atomic { RECEIVE(0); POSTED(1) } received[0]; atomic { SEND(1); RECEIVE(3); POSTED(1) } sent[1] && received[3]
  :: rank == 2 -> atomic { RECEIVE(2); POSTED(2) } received[2]; atomic { SEND(3); POSTED(2) } sent[3]
  fi
#elif PROGRAM == 2
  if
  :: rank == 0 -> atomic { NOTE_SEND(0) NOTE_RECEIVE(1) SEND(0); RECEIVE(1); POSTED(0) } atomic { NOTE_SEND(2) NOTE_RECEIVE(3) SEND(2); RECEIVE(3); POSTED(0) }
       sent[0] && received[1]; sent[2] && received[3]
  :: rank == 1 -> atomic { NOTE_SEND(3) NOTE_RECEIVE(2) SEND(3); RECEIVE(2); POSTED(1) } atomic { NOTE_SEND(1) NOTE_RECEIVE(0) SEND(1); RECEIVE(0); POSTED(1) }
       sent[3] && received[2]; sent[1] && received[0]
  :: rank == 2 -> skip
  fi
#elif PROGRAM == 3
  if
  :: rank == 0 -> atomic { SEND(0); POSTED(0) } atomic { SEND(1); POSTED(0) } sent[0]; sent[1]
  :: rank == 1 -> atomic { RECEIVE(2); POSTED(1) } received[2]; atomic { RECEIVE(0); POSTED(1) } received[0]
  :: rank == 2 -> atomic { RECEIVE(1); POSTED(2) } received[1]; atomic { SEND(2); POSTED(2) } sent[2]
  fi
#elif PROGRAM == 4
  if
  :: rank == 0 -> atomic { SEND(0); SEND(1); POSTED(0) } sent[0] && sent[1]
  :: rank == 1 -> atomic { RECEIVE(0); POSTED(1) } atomic { RECEIVE(1); POSTED(1) } received[1]; received[0]
  :: rank == 2 -> skip
  fi
#else
  if
  :: rank == 0 -> atomic { SEND(0); RECEIVE(1); POSTED(0) } sent[0] && received[1]
  :: rank == 1 -> atomic { SEND(1); RECEIVE(0); POSTED(1) } sent[1] && received[0]
  :: rank == 2 -> skip
  fi
#endif
}

/* ---- roles of a worker --------------------------------------------------------------------------------------------------- */

#define FREE(owner, writer) !(slot_flag[P(owner, writer)] & 1)
#ifdef MUT_TAKE_USED_SLOT
#define MAY_TAKE(owner, writer) true
#else
#define MAY_TAKE(owner, writer) FREE(owner, writer)
#endif
#if defined(MUT_PUSH_WITHOUT_GRANT)
#define MATCHED(m, r) (m == r)
#define MAY_SEND(r) CHUNKS
#elif defined(MUT_MORE_THAN_GRANTED)
#define MATCHED(m, r) (send_key[m] == receive_key[r] && grants_kept[r] > 0)
#define MAY_SEND(r) CHUNKS
#else
#define MATCHED(m, r) (send_key[m] == receive_key[r] && grants_kept[r] > 0)
#define MAY_SEND(r) grants_kept[r]
#endif
#ifdef MUT_WAIT_FOR_ALL_ROWS
#define ROWS (operations[0] > 0 && operations[1] > 0 && operations[2] > 0)
#else
#define ROWS true       /* known, or the row wait is over: it always ends */
#endif
#define READY(m, r) (src[m] == me && dst[m] == dst[r] && src[r] == me && send_key[m] != 0 && next[m] < CHUNKS && SEND_TURN(m) && ROWS)

#ifdef MUT_ANNOUNCE_BEFORE_COPY
#define COPY_AND_ANNOUNCE(m, r) \
    atomic { ring[P(me, dst[m])]!r, next[m], owner, turn } \
    atomic { slot_bytes[P(owner, me)] = TAG(m, next[m]); next[m]++; owner = 0; turn = 0 }
#else
#define COPY_AND_ANNOUNCE(m, r) \
    atomic { slot_bytes[P(owner, me)] = TAG(m, next[m]) } \
    atomic { ring[P(me, dst[m])]!r, next[m], owner, turn; next[m]++; owner = 0; turn = 0 }
#endif

#ifdef MUT_WAIT_IN_ROLE
/* chooses a path and then waits for room on it */
#define PUSH(m, r) :: atomic { READY(m, r) && MATCHED(m, r) && next[m] < MAY_SEND(r) -> \
       if :: owner = dst[m] :: owner = 3 - src[m] - dst[m] fi } \
     atomic { MAY_TAKE(owner, me) && nfull(ring[P(me, dst[m])]) -> \
       slot_flag[P(owner, me)]++; turn = slot_flag[P(owner, me)]; slot_bytes[P(owner, me)] = JUNK } \
     COPY_AND_ANNOUNCE(m, r)
#else
#define PUSH_TO(m, r, o) :: atomic { READY(m, r) && MATCHED(m, r) && next[m] < MAY_SEND(r) && MAY_TAKE(o, me) && nfull(ring[P(me, dst[m])]) -> \
       owner = o; slot_flag[P(owner, me)] = (slot_flag[P(owner, me)] + 1) | 1; turn = slot_flag[P(owner, me)]; slot_bytes[P(owner, me)] = JUNK } \
     COPY_AND_ANNOUNCE(m, r)
#define PUSH(m, r) PUSH_TO(m, r, dst[m]) PUSH_TO(m, r, (3 - src[m] - dst[m]))
#endif
#ifdef MUT_WAIT_FOR_GRANT
/* waits in the role until the message that it looked at first is granted */
#define SOURCE(m, r) :: atomic { READY(m, r) && m == r && next[m] == 0 -> skip } atomic { mail[P(dst[m], me)]?x, turn -> grants_kept[x] = turn; x = 0; turn = 0; \
    if :: grants_kept[r] > 0 -> skip :: else fi }
#else
#define SOURCE(m, r)
#endif

#define SENT(m) :: atomic { src[m] == me && !sent[m] && next[m] == CHUNKS -> sent[m] = 1 }

#define WANTED(r) (arrived[r] > 0 -> CHUNKS : FIRST)
#define GRANT(r) :: atomic { dst[r] == me && receive_key[r] != 0 && grants_sent[r] < WANTED(r) && !received[r] && RECEIVE_TURN(r) && nfull(mail[P(me, src[r])]) -> \
    grants_sent[r] = WANTED(r); mail[P(me, src[r])]!r, grants_sent[r] }

#ifdef MUT_DROP_EARLY_GRANT
#define KEEP(x, n) if :: send_key[x] != 0 -> grants_kept[x] = n :: else fi
#else
#define KEEP(x, n) grants_kept[x] = n
#endif
#define MAIL(w) :: atomic { mail[P(w, me)]?x, turn -> KEEP(x, turn); x = 0; turn = 0 }

#define PULL(w) :: atomic { ring[P(w, me)]?x, c, owner, turn } \
    if \
    :: atomic { slot_flag[P(owner, w)] != turn -> skip } \
    :: atomic { slot_flag[P(owner, w)] == turn && (receive_key[x] == 0 || c >= grants_sent[x] || (bits[x] & (1 << c))) -> slot_flag[P(owner, w)]++ } \
    :: atomic { slot_flag[P(owner, w)] == turn && receive_key[x] != 0 && c < grants_sent[x] && !(bits[x] & (1 << c)) -> \
         assert(!received[x]); user[x * CHUNKS + c] = slot_bytes[P(owner, w)]; assert(user[x * CHUNKS + c] == TAG(x, c)) } \
       atomic { slot_flag[P(owner, w)] = turn + 1; bits[x] = bits[x] | (1 << c); arrived[x]++ } \
    fi; atomic { x = 0; c = 0; owner = 0; turn = 0 }

#define RECEIVED(r) :: atomic { dst[r] == me && !received[r] && arrived[r] == CHUNKS -> received[r] = 1 }

proctype Worker(byte me)
{ byte x, c, owner, turn;
end:
  do
  PULL(0) PULL(1) PULL(2)
  MAIL(0) MAIL(1) MAIL(2)
  EACH_M(GRANT)
  EACH_MM(SOURCE)
  EACH_MM(PUSH)
  EACH_M(SENT)
  EACH_M(RECEIVED)
  od
}

proctype Monitor()
{ byte i;
  atomic { timeout ->
    do :: i < NM -> assert(sent[i] && received[i]); i++ :: else -> break od;
    i = 0; do :: i < NRANKS * NRANKS -> assert(!(slot_flag[i] & 1)); i++ :: else -> break od }
}

init {
  atomic { byte i; i = 0; do :: i < NRANKS -> run Program(i); run Worker(i); i++ :: else -> break od; run Monitor() }
}
