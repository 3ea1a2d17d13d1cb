/* GPU kernels as sources and destinations: docs/cuda.md.
 *
 * One resident block a rank. A rank's host launches one kernel an operation, in stream order: the next one runs when the one before has
 * ended. Only a running kernel grants, pushes and pulls; between kernels a rank does nothing at all. All chunks that a rank pushes, to
 * whomever, go through one slot (a pool at its smallest). A block tries each role in turn, pulls before pushes, and waits in none.
 *
 * PROGRAM 1: rank 0's kernel sends to 1 and to 2. Rank 1 launches the receive from 0 only after it has received from 2, which sends
 *            only after it has received from 0.
 *         2: ranks 0 and 1 exchange, twice.
 *         3: packets beside pushes. Ranks 0 and 1 each send the other a message in packets and one that has to be granted; rank 1 sends each of
 *            its own only in the operation after the one that receives the other kind.
 *
 * Packets (program 3) need no grant: a line of a pair may be written when it was credited since it was last written, it is there when its
 * number is, and it is credited after it was read.
 */
#ifndef PROGRAM
#define PROGRAM 1
#endif
#ifndef NC
#define NC 2
#endif
#define NRANKS 3
#define TAG(m, c) ((m) * 4 + (c) + 1)
#define JUNK 99

#if PROGRAM == 3
#define NM 4
byte src[NM] = { 0, 0, 1, 1 };
byte dst[NM] = { 1, 1, 0, 0 };
byte send_op[NM] = { 1, 1, 2, 3 };
byte receive_op[NM] = { 1, 2, 1, 1 };
byte operations[NRANKS] = { 1, 3, 0 };
bit  packets[NM] = { 1, 0, 0, 1 };
byte line[NRANKS], written[NRANKS], credited[NRANKS];   /* of the pair that the rank writes to; NC lines a message, one in flight */
#define IN_PACKETS(m) packets[m]
#define EACH_M(F) F(0) F(1) F(2) F(3)
#define OF_EACH_M(F) F(0) F(1) F(2) F(3)   /* for use inside of EACH_M: a macro does not expand itself */
#elif PROGRAM == 1
#define IN_PACKETS(m) false
#define NM 3
byte src[NM] = { 0, 0, 2 };
byte dst[NM] = { 1, 2, 1 };
byte send_op[NM] = { 1, 1, 2 };         /* operation of the source rank that sends the message */
byte receive_op[NM] = { 2, 1, 1 };
byte operations[NRANKS] = { 1, 2, 2 };
#define EACH_M(F) F(0) F(1) F(2)
#else
#define IN_PACKETS(m) false
#define NM 4
byte src[NM] = { 0, 1, 0, 1 };
byte dst[NM] = { 1, 0, 1, 0 };
byte send_op[NM] = { 1, 1, 2, 2 };
byte receive_op[NM] = { 1, 1, 2, 2 };
byte operations[NRANKS] = { 2, 2, 0 };
#define EACH_M(F) F(0) F(1) F(2) F(3)
#endif

byte launched[NRANKS], ended[NRANKS];   /* operations of a rank */
bit  host_said[NRANKS];                 /* only for the mutation */
bit  granted[NM];
byte pushed[NM], pulled[NM];
byte user[NM];                          /* chunks that came, as a mask */
bit  taken[NRANKS], announced[NRANKS];   /* the slot that a rank writes */
byte bytes[NRANKS], slot_message[NRANKS], slot_chunk[NRANKS];

#define RUNNING(r, op) (launched[r] == (op) && ended[r] < (op))

proctype Host(byte r)
{
  do
  :: atomic { launched[r] < operations[r] && launched[r] == ended[r] -> launched[r]++ }
#ifdef MUT_NEEDS_HOST_CALL
     /* a call that the runtime holds back until the kernel has ended, and then the one that the kernel waits for */
     ended[r] == launched[r]; host_said[r] = 1
#endif
  :: atomic { ended[r] == operations[r] -> break }
  od
}

#ifdef MUT_PUSH_WITHOUT_GRANT
#define MAY_PUSH(m) true
#else
#define MAY_PUSH(m) granted[m]
#endif
#ifdef MUT_NEEDS_HOST_CALL
#define MAY_END(r) host_said[r]
#else
#define MAY_END(r) true
#endif

/* Whether this turn is the granted messages'. */
#ifdef MUT_PACKETS_FIRST
#define PACKET_LEFT(m) (IN_PACKETS(m) && LEFT(m) false) ||
#define GRANTED_TURN (!(OF_EACH_M(PACKET_LEFT) false))
#else
#define GRANTED_TURN true
#endif
#ifdef MUT_GRANTED_FIRST
#define GRANTED_LEFT(m) (!IN_PACKETS(m) && LEFT(m) false) ||
#define PACKET_TURN (!(OF_EACH_M(GRANTED_LEFT) false))
#else
#define PACKET_TURN true
#endif
#define GRANT(m) :: atomic { dst[m] == me && !IN_PACKETS(m) && GRANTED_TURN && RUNNING(me, receive_op[m]) && !granted[m] -> granted[m] = 1 }
#define PULL(m)  :: atomic { dst[m] == me && GRANTED_TURN && RUNNING(me, receive_op[m]) && announced[src[m]] && slot_message[src[m]] == m -> c = slot_chunk[src[m]] } \
    atomic { assert(bytes[src[m]] == TAG(m, c)); assert(!(user[m] & (1 << c))); user[m] = user[m] | (1 << c) } \
    atomic { announced[src[m]] = 0; taken[src[m]] = 0; pulled[m]++; c = 0 }
#ifdef MUT_PUSH_WAITS
#define PUSH(m)  :: atomic { src[m] == me && RUNNING(me, send_op[m]) && MAY_PUSH(m) && pushed[m] < NC -> skip } \
    atomic { !taken[me] -> taken[me] = 1; bytes[me] = JUNK } FILL(m)
#else
#define PUSH(m)  :: atomic { src[m] == me && !IN_PACKETS(m) && GRANTED_TURN && RUNNING(me, send_op[m]) && MAY_PUSH(m) && pushed[m] < NC && !taken[me] -> taken[me] = 1; bytes[me] = JUNK } FILL(m)
#endif
#define FILL(m) \
    atomic { bytes[me] = TAG(m, pushed[m]); slot_message[me] = m; slot_chunk[me] = pushed[m] } \
    atomic { announced[me] = 1; pushed[m]++ }

#if PROGRAM == 3
#define WRITE(m) :: atomic { src[m] == me && IN_PACKETS(m) && PACKET_TURN && RUNNING(me, send_op[m]) && pushed[m] < NC && written[me] == credited[me] -> \
    line[me] = TAG(m, pushed[m]); written[me]++; pushed[m]++ }
#ifdef MUT_CREDIT_FIRST
#define TAKE(m)  :: atomic { dst[m] == me && IN_PACKETS(m) && PACKET_TURN && RUNNING(me, receive_op[m]) && pulled[m] < NC && written[src[m]] > credited[src[m]] -> credited[src[m]]++ } \
    atomic { assert(line[src[m]] == TAG(m, pulled[m])); user[m] = user[m] | (1 << pulled[m]); pulled[m]++ }
#else
#define TAKE(m)  :: atomic { dst[m] == me && IN_PACKETS(m) && PACKET_TURN && RUNNING(me, receive_op[m]) && pulled[m] < NC && written[src[m]] > credited[src[m]] -> \
    assert(line[src[m]] == TAG(m, pulled[m])); user[m] = user[m] | (1 << pulled[m]) } \
    atomic { credited[src[m]]++; pulled[m]++ }
#endif
#endif

#define LEFT(m) ((src[m] == me && send_op[m] == launched[me] && pushed[m] < NC) || (dst[m] == me && receive_op[m] == launched[me] && pulled[m] < NC)) ||

proctype Block(byte me)
{ byte c;
end:
  do
#if PROGRAM == 3
  EACH_M(TAKE)
  EACH_M(WRITE)
#endif
  EACH_M(GRANT)
  EACH_M(PULL)
  EACH_M(PUSH)
  :: atomic { launched[me] > ended[me] && !(EACH_M(LEFT) false) && MAY_END(me) -> ended[me]++ }
  od
}

proctype Monitor()
{ byte i;
  atomic { timeout ->
    do :: i < NRANKS -> assert(ended[i] == operations[i] && !taken[i]); i++ :: else -> break od }
}

init { atomic { byte i; i = 0; do :: i < NRANKS -> run Host(i); run Block(i); i++ :: else -> break od; run Monitor() } }
