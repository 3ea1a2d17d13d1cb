/* Operations that fail, and the ones after them: docs/protocol.md §9, §12; mapped buffers of §6.3; numbers of §2.
 *
 * Rank d posts operation 1: receive message 1 from its mate s, and a message from rank a; then operation 2: receive message 2 from s.
 * Rank s posts operation 1: send message 1 (and, with WITH_A, receive from a); then operation 2: send message 2. Buffers are mapped: s
 * writes them itself. Rank a dies at any moment, or does not. Checked: every operation ends; operation 2, which has nothing to do with
 * a, always succeeds with the right bytes; no buffer is written after its operation has ended.
 */
#ifndef WITH_A
#define WITH_A 1
#endif
#define NC 2                    /* chunks of message 1; message 2 has one */
#define CHUNKS(i) ((i) == 1 -> NC : 1)
#define TAG(i, c) ((i) * 4 + (c) + 1)

#define IDLE    0
#define RUNNING 1
#define FAILING 2
#define ENDED   3
#define FAILED  4
byte op_s[3], op_d[3];          /* by operation: 1, 2 */
byte number_s[3], number_d[3];  /* of the operation's message; 0: not posted */
byte counter_s, counter_d;

#define GRANT 1
#define CANCEL 2
#define CANCELLED 3
chan to_s = [4] of { byte, byte, byte };        /* kind, number, which buffer */
chan to_d = [4] of { byte, byte };
chan placed = [4] of { byte, byte };            /* number, chunk */

byte granted[4];                /* s: buffer that the grant of a number gave; 0 none */
bit  cancelled_s[4], cancelled_d[4];    /* the peer has cancelled that number */
byte next[3];
byte bits[3];
byte buffer[3 * NC];
bit  a_dead, a_to_s, a_to_d;    /* a's message has arrived */
bit  s_knows, d_knows;
byte die = 1;

proctype A()
{
end:
  do
  :: atomic { !a_dead && !a_to_s -> a_to_s = 1 }
  :: atomic { !a_dead && !a_to_d -> a_to_d = 1 }
  :: atomic { die > 0 -> die--; a_dead = 1; break }
  :: atomic { die > 0 -> die = 0 }
  od
}

#ifdef MUT_FAILED_POST_TAKES_NO_NUMBER
#define TAKES_NUMBER(knows, i) !(knows && i == 1)
#else
#define TAKES_NUMBER(knows, i) true
#endif

/* ---- s ------------------------------------------------------------------------------------------------------------------- */

inline fail_s(i, tell) {
  op_s[i] = FAILED;             /* nobody writes into its buffers: nothing to wait for */
  if :: tell && number_s[i] != 0 && next[i] < CHUNKS(i) -> to_d!CANCEL, number_s[i] :: else fi
}

#define POST_S(i) :: atomic { op_s[i] == IDLE && (i == 1 || op_s[1] >= ENDED) -> \
    if :: TAKES_NUMBER((s_knows && WITH_A), i) -> counter_s++; number_s[i] = counter_s :: else fi; \
    if \
    :: i == 1 && WITH_A && s_knows -> fail_s(i, true) \
    :: !(i == 1 && WITH_A && s_knows) && cancelled_s[number_s[i]] -> fail_s(i, false) \
    :: else -> op_s[i] = RUNNING \
    fi }

#ifdef MUT_KEEP_WRITING
#define MAY_WRITE(i) (op_s[i] == RUNNING || (op_s[i] == FAILED && cancelled_s[number_s[i]]))
#else
#define MAY_WRITE(i) (op_s[i] == RUNNING)
#endif
#define PUSH(i) :: atomic { MAY_WRITE(i) && granted[number_s[i]] != 0 && next[i] < CHUNKS(i) && nfull(placed) -> b = granted[number_s[i]] } \
    atomic { assert(op_d[b] == RUNNING || op_d[b] == FAILING); buffer[b * NC + next[i] - NC] = TAG(i, next[i]) } \
    atomic { placed!number_s[i], next[i]; next[i]++; b = 0 }

#ifdef MUT_CANCEL_OF_RETIRED_IGNORED
#define ANSWER(n) if :: (number_s[1] == n && op_s[1] >= ENDED) || (number_s[2] == n && op_s[2] >= ENDED) :: else -> to_d!CANCELLED, n fi
#else
#define ANSWER(n) to_d!CANCELLED, n
#endif
#ifdef MUT_CANCEL_BEFORE_POST_FORGOTTEN
#define REMEMBER(n)
#else
#define REMEMBER(n) cancelled_s[n] = 1;
#endif

proctype S()
{ byte kind, n, b;
end:
  do
  POST_S(1) POST_S(2)
  PUSH(1) PUSH(2)
  :: atomic { op_s[1] == RUNNING && next[1] == NC && (a_to_s || !WITH_A) -> op_s[1] = ENDED }
  :: atomic { op_s[2] == RUNNING && next[2] == 1 -> op_s[2] = ENDED }
  :: atomic { a_dead && !s_knows -> s_knows = 1; if :: WITH_A && op_s[1] == RUNNING && !a_to_s -> fail_s(1, true) :: else fi }
  :: atomic { to_s?kind, n, b ->
       if
       :: kind == GRANT -> granted[n] = b
       :: kind == CANCEL -> REMEMBER(n)
          if
          :: number_s[1] == n && op_s[1] == RUNNING -> cancelled_s[n] = 1; fail_s(1, false)
          :: number_s[2] == n && op_s[2] == RUNNING -> cancelled_s[n] = 1; fail_s(2, false)
          :: else
          fi; ANSWER(n)
       :: kind == CANCELLED
       fi; kind = 0; n = 0; b = 0 }
  od
}

/* ---- d ------------------------------------------------------------------------------------------------------------------- */

#ifdef MUT_RETURN_WITHOUT_ANSWER
#define WAITS_FOR_WRITER FAILED
#else
#define WAITS_FOR_WRITER FAILING
#endif

/* granted: whether s may write */
inline fail_d(i, was_granted) {
  to_s!CANCEL, number_d[i], 0;
  op_d[i] = (was_granted -> WAITS_FOR_WRITER : FAILED)
}

#define POST_D(i) :: atomic { op_d[i] == IDLE && (i == 1 || op_d[1] >= ENDED) -> \
    if :: TAKES_NUMBER(d_knows, i) -> counter_d++; number_d[i] = counter_d :: else fi; \
    if \
    :: i == 1 && d_knows -> if :: number_d[i] != 0 -> fail_d(i, false) :: else -> op_d[i] = FAILED fi \
    :: !(i == 1 && d_knows) && cancelled_d[number_d[i]] -> op_d[i] = FAILED \
    :: else -> op_d[i] = RUNNING; to_s!GRANT, number_d[i], i \
    fi }

proctype D()
{ byte kind, n, c;
end:
  do
  POST_D(1) POST_D(2)
  :: atomic { placed?n, c ->
       if
       :: number_d[1] == n && op_d[1] == RUNNING -> bits[1] = bits[1] | (1 << c)
       :: number_d[2] == n && op_d[2] == RUNNING -> bits[2] = bits[2] | (1 << c)
       :: else
       fi; n = 0; c = 0 }
  :: atomic { op_d[1] == RUNNING && bits[1] == 3 && a_to_d -> assert(buffer[0] == TAG(1, 0) && buffer[1] == TAG(1, 1)); op_d[1] = ENDED }
  :: atomic { op_d[2] == RUNNING && bits[2] == 1 -> assert(buffer[NC] == TAG(2, 0)); op_d[2] = ENDED }
  :: atomic { a_dead && !d_knows -> d_knows = 1;
       if
       :: op_d[1] == RUNNING && !a_to_d && bits[1] != 3 -> fail_d(1, true)
       :: op_d[1] == RUNNING && !a_to_d && bits[1] == 3 -> op_d[1] = FAILED      /* message 1 is retired: s writes nothing more */
       :: else
       fi }
  :: atomic { to_d?kind, n ->
       if
       :: kind == CANCEL -> cancelled_d[n] = 1;
          if
          :: number_d[1] == n && (op_d[1] == RUNNING || op_d[1] == FAILING) -> op_d[1] = FAILED
          :: number_d[2] == n && (op_d[2] == RUNNING || op_d[2] == FAILING) -> op_d[2] = FAILED
          :: else
          fi; to_s!CANCELLED, n, 0
       :: kind == CANCELLED ->
          if :: number_d[1] == n && op_d[1] == FAILING -> op_d[1] = FAILED :: else fi
       fi; kind = 0; n = 0 }
  od
}

proctype Monitor()
{
  atomic { timeout ->
    assert(op_s[1] >= ENDED && op_d[1] >= ENDED);
    assert(op_s[2] == ENDED && op_d[2] == ENDED);
    assert(a_dead || (op_s[1] == ENDED && op_d[1] == ENDED)) }
}

init { atomic { run A(); run S(); run D(); run Monitor() } }
