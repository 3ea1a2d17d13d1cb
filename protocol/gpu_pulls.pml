/* Granted messages whose second half the destination may read out of the source's buffer (docs/cuda.md, "Who writes what").
 *
 * A station is a rank in a communicator: station s has rank s & 1, its peer is s ^ 1. It runs its operations one after another; each is a
 * kernel of NB blocks, which begin in any order and at any time at which their rank's GPU has a processor left (PROCESSORS), keep it until
 * they leave, and wait inside no role. A message has FIRST pieces that the source pushes, and SECOND pieces behind them, which it pushes,
 * too, or the destination fetches. That takes two: the source offers its buffer (or does not) when its operation begins, before there is a
 * grant; the destination's grant says whether its kernel looks at offers. Each is chosen for a launch, and neither end knows of the
 * other's choice. A destination that looks, and has not mapped that buffer, declines. Grants and the count `placed` of message n have place
 * n % PLACES in the pair's ports; for offers, `fetched` and `offered_at` there is one place, as one message of a pair and direction in an
 * operation is offered at most.
 *
 * PROGRAM 1: one pair, OPERATIONS operations in a row at both ends.
 *         2: both ways at once.
 *         3: two communicators, crosswise: each rank sends in one and receives in the other, both with kernels on its GPU.
 *         4: the source sends two messages in one operation, of which one is offered at most; the destination receives them in two.
 *         5: the source sends them in two, and may offer each; the destination receives them in one.
 *
 * FAIL: as in gpu_indirect.pml. A rank that has offered stays, too, until what it offered is surely not read any more.
 *
 * Checked: no byte lands twice or in another message's buffer, the source's buffer is not read before its kernel has begun or once it has
 * ended, nor the destination's written; all words are as they were found when an operation has ended; every operation ends; where it was
 * not stopped, with all of its bytes.
 */
#ifndef PROGRAM
#define PROGRAM 1
#endif
#ifndef OPERATIONS
#define OPERATIONS 2    /* PROGRAM 1: 1 to 3 */
#endif
#ifndef NB
#define NB 2
#endif
#ifndef NB_1
#define NB_1 NB         /* of stations of rank 1, which PROGRAM 1 sends to */
#endif
#ifndef FIRST
#define FIRST 1
#endif
#ifndef SECOND
#define SECOND 2
#endif
#ifndef PROCESSORS
#define PROCESSORS 2
#endif
#ifndef PLACES
#define PLACES 2        /* kGrants */
#endif
#ifndef FAIL
#define FAIL 0
#endif
#define PIECES (FIRST + SECOND)
#define ALL ((1 << PIECES) - 1)

#if PROGRAM == 1
#define NS 2
#define NM OPERATIONS
#if OPERATIONS == 1
byte src[NM] = { 0 };
byte dst[NM] = { 1 };
byte send_op[NM] = { 1 };
byte receive_op[NM] = { 1 };
byte send_place[NM] = { 0 };            /* among the messages of its pair in the operation, Message::ordinal */
byte receive_place[NM] = { 0 };
#define EACH_M(F) F(0)
#elif OPERATIONS == 2
byte src[NM] = { 0, 0 };
byte dst[NM] = { 1, 1 };
byte send_op[NM] = { 1, 2 };
byte receive_op[NM] = { 1, 2 };
byte send_place[NM] = { 0, 0 };         /* among the messages of its pair in the operation, Message::ordinal */
byte receive_place[NM] = { 0, 0 };
#define EACH_M(F) F(0) F(1)
#else
byte src[NM] = { 0, 0, 0 };
byte dst[NM] = { 1, 1, 1 };
byte send_op[NM] = { 1, 2, 3 };
byte receive_op[NM] = { 1, 2, 3 };
byte send_place[NM] = { 0, 0, 0 };
byte receive_place[NM] = { 0, 0, 0 };
#define EACH_M(F) F(0) F(1) F(2)
#endif
byte operations[NS] = { OPERATIONS, OPERATIONS };
#elif PROGRAM == 2
#define NS 2
#define NM 2
byte src[NM] = { 0, 1 };
byte dst[NM] = { 1, 0 };
byte send_op[NM] = { 1, 1 };
byte receive_op[NM] = { 1, 1 };
byte send_place[NM] = { 0, 0 };
byte receive_place[NM] = { 0, 0 };
byte operations[NS] = { 1, 1 };
#define EACH_M(F) F(0) F(1)
#elif PROGRAM == 3
#define NS 4
#define NM 2
byte src[NM] = { 0, 3 };
byte dst[NM] = { 1, 2 };
byte send_op[NM] = { 1, 1 };
byte receive_op[NM] = { 1, 1 };
byte send_place[NM] = { 0, 0 };
byte receive_place[NM] = { 0, 0 };
byte operations[NS] = { 1, 1, 1, 1 };
#define EACH_M(F) F(0) F(1)
#elif PROGRAM == 4
#define NS 2
#define NM 2
byte src[NM] = { 0, 0 };
byte dst[NM] = { 1, 1 };
byte send_op[NM] = { 1, 1 };
byte receive_op[NM] = { 1, 2 };
byte send_place[NM] = { 0, 1 };
byte receive_place[NM] = { 0, 0 };
byte operations[NS] = { 1, 2 };
#define EACH_M(F) F(0) F(1)
#else
#define NS 2
#define NM 2
byte src[NM] = { 0, 0 };
byte dst[NM] = { 1, 1 };
byte send_op[NM] = { 1, 2 };
byte receive_op[NM] = { 1, 1 };
byte send_place[NM] = { 0, 0 };
byte receive_place[NM] = { 0, 1 };
byte operations[NS] = { 2, 1 };
#define EACH_M(F) F(0) F(1)
#endif

#define NO  1
#define YES 2
#define LOOKS_UP 1                      /* whether the buffer is mapped */
#define ACCEPTED 2
#define DECLINED 3
#define FLAG 16                         /* kDeclined, added to `fetched` */

byte room[2];                           /* processors of a rank's GPU */
byte ended[NS], left[NS];               /* operations; blocks of the one that runs, which is the next one */
bit  quit[NS];                          /* a block of it was stopped */
/* a message's state at its source */
byte offers[NM];                        /* NO, YES: the first block posts it; 0: none has begun */
byte claimed[NM];                       /* pieces, of the first ones where it offers the second ones */
byte pushed[NM];                        /* second pieces that blocks push all the same: `pieces` */
/* and at its destination */
byte grants[NM];                        /* NO, YES: whether it looks at offers; 0: none has begun */
byte answered[NM];
byte fetching[NM];                      /* second pieces that blocks have taken: `pieces` */
byte came[NM];                          /* pieces that were fetched: `claimed` */
byte user[NM];                          /* its buffer: pieces that came, as a mask */
/* a pair's words; at index of the source */
byte sent[NS], received[NS];            /* messages of operations that ended well; `received` at index of the destination */
byte grant_number[NS * PLACES], grant_of[NS * PLACES], grant_looks[NS * PLACES];
byte placed[NS * PLACES];
byte offer_number[NS], offer_of[NS], fetched[NS];
byte offered_at[NS];                    /* the destination's: 1 + the source's message whose buffer it is */
#if FAIL
bit  over[NS], stop[NS], halted[NS], rests[NS];
byte open[NS];                          /* blocks that may write, or read a mate's buffer */
byte faults = 1;
#endif

#define RANK(s) ((s) & 1)
#define BLOCKS(s) (RANK(s) == 0 -> NB : NB_1)
#define PEER (s ^ 1)
#define SENDS(m)    (src[m] == s && send_op[m] == op)
#define RECEIVES(m) (dst[m] == s && receive_op[m] == op)
#define SENT_AS(m)     (sent[src[m]] + send_place[m] + 1)
#define RECEIVED_AS(m) (received[dst[m]] + receive_place[m] + 1)
#define AT_SOURCE(m)      (src[m] * PLACES + SENT_AS(m) % PLACES)
#define AT_DESTINATION(m) (src[m] * PLACES + RECEIVED_AS(m) % PLACES)
/* the kernels that have the buffers run; the one that reads or writes is another one */
#define IN_BUFFER(m) assert(ended[dst[m]] == receive_op[m] - 1)
#define IN_SOURCE(m) assert(ended[src[m]] == send_op[m] - 1)
#define LAND(m, c) assert(!(user[m] & (1 << (c)))); user[m] = user[m] | (1 << (c))

/* --- the source */
#define IS_GRANTED(m)  (grant_number[AT_SOURCE(m)] == SENT_AS(m))
#define TARGET(m)      (grant_of[AT_SOURCE(m)] - 1)
#define IS_DECLINED(m) (fetched[src[m]] & FLAG)
#define IS_FETCHED(m)  (fetched[src[m]] == SECOND)
#define LIMIT(m)       (offers[m] == YES -> FIRST : PIECES)
#ifdef MUT_OFFERS_TWICE
#define MAY_OFFER(m) true
#else
#define MAY_OFFER(m) (PROGRAM != 4 || offers[1 - (m)] != YES)
#endif
#ifdef MUT_BIT_IGNORED
#define WILL_PUSH(m) (IS_GRANTED(m) && IS_DECLINED(m))
#elif defined(MUT_PUSHES_ALL_THE_SAME)
#define WILL_PUSH(m) IS_GRANTED(m)
#else
#define WILL_PUSH(m) (IS_GRANTED(m) && (grant_looks[AT_SOURCE(m)] == NO || IS_DECLINED(m)))
#endif
/* A claim that comes out beyond the limit is nothing. Counting it makes no difference, but where both parts have one counter. */
#ifdef MUT_CLAIMS_BEYOND
#define MOST(m)     PIECES
#define IS_VALID(m) true
#elif defined(MUT_ONE_COUNTER)
#define MOST(m)     PIECES
#define IS_VALID(m) (claimed[m] < LIMIT(m))
#else
#define MOST(m)     LIMIT(m)
#define IS_VALID(m) true
#endif
#define CLAIM(m) \
    if \
    :: claimed[m] < MOST(m) -> own[m] = (IS_VALID(m) -> claimed[m] + 1 : 0); claimed[m]++ \
    :: else \
    fi;
#ifdef MUT_ONE_COUNTER
#define TO_PUSH(m)      (claimed[m] < PIECES)
#define CLAIM_SECOND(m) own[m] = claimed[m] + 1; claimed[m]++
#else
#define TO_PUSH(m)      (pushed[m] < SECOND)
#define CLAIM_SECOND(m) own[m] = FIRST + pushed[m] + 1; pushed[m]++
#endif
/* What says that all is over comes before the grant, in whose place a later one may lie by then. */
#ifdef MUT_GRANT_FIRST
#define SECOND_TO_DO(m) (TO_PUSH(m) && !(IS_GRANTED(m) && IS_FETCHED(m)))
#elif defined(MUT_ENDS_UNFETCHED)
#define SECOND_TO_DO(m) (TO_PUSH(m) && !IS_FETCHED(m) && !(IS_GRANTED(m) && !WILL_PUSH(m)))
#else
#define SECOND_TO_DO(m) (TO_PUSH(m) && !IS_FETCHED(m))
#endif
#define HOME(m) (PROGRAM != 4 || (m) == b)      /* a block begins with a piece of one send, granted or not */
#define SEND_TO_DO(m) (claimed[m] < LIMIT(m) || (offers[m] == YES && SECOND_TO_DO(m)))

/* --- the destination */
#define IS_OVER(m) (grants[m] != 0 && placed[AT_DESTINATION(m)] + came[m] >= PIECES)
#ifdef MUT_OFFER_OF_ANY_NUMBER
#define IS_OFFERED(m) (offer_number[src[m]] != 0)
#else
#define IS_OFFERED(m) (offer_number[src[m]] == RECEIVED_AS(m))
#endif

#if defined(MUT_FETCHED_STAYS) || defined(MUT_ENDS_UNFETCHED) || defined(MUT_OVER_IS_NOT_READ) || defined(MUT_GIVES_UP_SILENTLY)
#define IS_CLEAN(word) true /* what comes of it is to be seen */
#else
#define IS_CLEAN(word) ((word) == 0)
#endif
#define BEGIN(m) \
    if \
    :: RECEIVES(m) && grants[m] == 0 -> \
         if :: !moves_nothing -> grants[m] = NO :: grants[m] = YES fi; \
         assert(moves_nothing || IS_CLEAN(placed[AT_DESTINATION(m)])); \
         posts = posts | (!moves_nothing << m) \
    :: SENDS(m) -> \
         if \
         :: offers[m] == 0 -> \
              if :: !moves_nothing || !MAY_OFFER(m) -> offers[m] = NO :: MAY_OFFER(m) -> offers[m] = YES fi; \
              assert(moves_nothing || IS_CLEAN(fetched[src[m]])); \
              posts = posts | ((offers[m] == YES && !moves_nothing) << m) \
         :: else \
         fi; \
         if :: HOME(m) -> CLAIM(m) :: else fi \
    :: else \
    fi;
#define POST(m) \
    if \
    :: (posts & (1 << m)) && dst[m] == s && receive_op[m] == op -> \
         grant_number[AT_DESTINATION(m)] = RECEIVED_AS(m); grant_of[AT_DESTINATION(m)] = m + 1; grant_looks[AT_DESTINATION(m)] = grants[m] \
    :: (posts & (1 << m)) && src[m] == s && send_op[m] == op -> \
         offer_number[src[m]] = SENT_AS(m); offer_of[src[m]] = m + 1 \
    :: else \
    fi;
#define OWN(m) :: atomic { SENDS(m) && own[m] == 0 && !moves_nothing && IS_GRANTED(m) && claimed[m] < LIMIT(m) -> CLAIM(m) }
#define OWN_SECOND(m) \
    :: atomic { SENDS(m) && own[m] == 0 && !moves_nothing && offers[m] == YES && claimed[m] >= FIRST && WILL_PUSH(m) && TO_PUSH(m) -> \
         CLAIM_SECOND(m) }
#define PUSH(m) \
    :: atomic { SENDS(m) && own[m] != 0 && !moves_nothing && IS_GRANTED(m) -> i = TARGET(m); c = own[m] - 1; own[m] = 0; IN_BUFFER(i) } \
       atomic { IN_BUFFER(i); assert(i == m); LAND(i, c); placed[AT_SOURCE(m)]++; i = 0; c = 0 }
#ifdef MUT_ANSWERS_WITHOUT_SWAP
#define TAKE_ANSWER(m) skip
#else
#define TAKE_ANSWER(m) answered[m] = LOOKS_UP
#endif
#define ANSWER(m) \
    :: atomic { RECEIVES(m) && !moves_nothing && grants[m] == YES && answered[m] == 0 && IS_OFFERED(m) -> \
         TAKE_ANSWER(m); i = m } \
       goto answer
#ifdef MUT_FETCHES_WITHOUT_ADD
#define TAKE_PIECE(m) skip
#else
#define TAKE_PIECE(m) fetching[m]++
#endif
#define FETCH(m) \
    :: atomic { RECEIVES(m) && !moves_nothing && answered[m] == ACCEPTED && fetching[m] < SECOND -> \
         c = fetching[m]; TAKE_PIECE(m); i = m } \
       goto fetch
#define TO_DO(m)    (SENDS(m) && (own[m] != 0 || SEND_TO_DO(m))) || (RECEIVES(m) && !IS_OVER(m)) ||
#ifdef MUT_FETCHED_STAYS
#define CLEAR_FETCHED(m) skip
#else
#define CLEAR_FETCHED(m) if :: offers[m] == YES -> fetched[src[m]] = 0 :: else fi
#endif
#define CLEAR(m)    if :: SENDS(m) -> CLEAR_FETCHED(m) :: RECEIVES(m) -> placed[AT_DESTINATION(m)] = 0; assert(user[m] == ALL) :: else fi;
#define MOVE_ON(m)  if :: SENDS(m) -> sent[s]++ :: RECEIVES(m) -> received[s]++ :: else fi;
#define FORGET(m)   own[m] = 0;
#define WIPE(m) \
    if \
    :: SENDS(m) -> offers[m] = 0; claimed[m] = 0; pushed[m] = 0 \
    :: RECEIVES(m) -> grants[m] = 0; answered[m] = 0; fetching[m] = 0; came[m] = 0; user[m] = 0 \
    :: else \
    fi;
/* Roles::is_exposed, FetchRoles::may_be_read. A block that began when all was over does not know the number: what others may have granted or
 * offered counts. What was offered may be read even where no grant has come yet, but not where one says that offers are not looked at. */
#ifdef MUT_OFFER_NOT_OUTLASTED
#define MAY_BE_READ(m) false
#elif defined(MUT_UNGRANTED_LEAVES)
#define MAY_BE_READ(m) (unknown || (IS_GRANTED(m) && !IS_FETCHED(m) && !IS_DECLINED(m)))
#else
#define MAY_BE_READ(m) (unknown || !(IS_FETCHED(m) || IS_DECLINED(m) || WILL_PUSH(m)))
#endif
#define IS_EXPOSED(m) (SENDS(m) && offers[m] == YES && MAY_BE_READ(m)) || (RECEIVES(m) && grants[m] != 0 && (unknown || !IS_OVER(m))) ||
#ifdef MUT_READERS_DO_NOT_COUNT
#define COUNTS(m) SENDS(m) ||
#define IS_OPEN (!moves_nothing && (EACH_M(COUNTS) false))
#else
#define IS_OPEN (!moves_nothing)
#endif

proctype Block(byte s; byte b)
{ byte op, i, c, n, posts;
  byte own[NM];
  bit moves_nothing, unknown, stopped;
end:
  do
  :: atomic { op == ended[s] && op < operations[s] && room[RANK(s)] > 0 ->
       room[RANK(s)]--; op++;
#if FAIL
#ifndef MUT_OVER_IS_NOT_READ
       moves_nothing = over[s];
#endif
       open[s] = open[s] + IS_OPEN;
#endif
       EACH_M(BEGIN) }
     /* others of its blocks may begin, and look, in between */
     if
     :: atomic { posts != 0 -> EACH_M(POST) posts = 0 }
     :: atomic { posts == 0 }
     fi;
turn:
     do
     EACH_M(OWN)
     EACH_M(OWN_SECOND)
     EACH_M(PUSH)
     EACH_M(ANSWER)
     EACH_M(FETCH)
#if FAIL
     :: atomic { stop[s] -> stopped = 1; break }
#endif
     :: atomic { !moves_nothing && !(EACH_M(TO_DO) false) -> break }
     od;
     atomic {
       EACH_M(FORGET)
#if FAIL
       open[s] = open[s] - IS_OPEN; unknown = moves_nothing; moves_nothing = 0;
#endif
       quit[s] = quit[s] || stopped; stopped = 0;
       left[s]++;
       if
       :: left[s] < BLOCKS(s) -> unknown = 0; goto leave
       :: left[s] == BLOCKS(s) && !quit[s] -> unknown = 0; EACH_M(CLEAR) EACH_M(MOVE_ON) skip
#if FAIL
       :: left[s] == BLOCKS(s) && quit[s] ->
#ifndef MUT_GIVES_UP_SILENTLY
          over[s] = 1;
#endif
          goto rest
#endif
       fi }
next_operation:
     atomic { EACH_M(WIPE) left[s] = 0; quit[s] = 0; ended[s]++ };
leave:
     atomic { room[RANK(s)]++ }
  od;

#if FAIL
rest:   /* Roles::outlast_grants: until the host says kLeave, if a mate may still write into its buffers or read them */
  atomic { rests[PEER] || !(EACH_M(IS_EXPOSED) false) -> unknown = 0; goto next_operation };
#endif

answer:
  if
  :: atomic { true ->                   /* mapped */
#ifdef MUT_ADDRESS_AFTER_ANSWER
       answered[i] = ACCEPTED };
     atomic { offered_at[src[i]] = offer_of[src[i]]; i = 0; goto turn }
#else
       offered_at[src[i]] = offer_of[src[i]] };
     atomic { answered[i] = ACCEPTED; i = 0; goto turn }
#endif
  :: atomic { true -> answered[i] = DECLINED };
#ifdef MUT_DECLINES_SILENTLY
     atomic { i = 0; goto turn }
#else
     atomic { fetched[src[i]] = fetched[src[i]] + FLAG; i = 0; goto turn }
#endif
  fi;

fetch:
#ifdef MUT_FETCHED_BEFORE_READ
  atomic { fetched[src[i]]++ };
#endif
  atomic {
#ifdef MUT_FETCHES_WITHOUT_ADD
    fetching[i] = c + 1;
#endif
    n = offered_at[src[i]]; assert(n != 0); IN_SOURCE(n - 1) };
  atomic { IN_SOURCE(n - 1); assert(n - 1 == i); LAND(i, FIRST + c); c = 0; n = 0 };
  atomic { came[i]++ };
#ifdef MUT_FETCHED_BEFORE_READ
  atomic { i = 0; goto turn }
#else
  atomic { fetched[src[i]]++; i = 0; goto turn }
#endif
}

#if FAIL
proctype Host(byte s)
{
end:
  do
  :: atomic { faults > 0 && !stop[s] -> faults--; stop[s] = 1 }
  :: atomic { stop[PEER] && !stop[s] -> stop[s] = 1 }
  :: atomic { stop[s] && !halted[s] -> halted[s] = 1; over[s] = 1 }
  :: atomic { halted[s] && open[s] == 0 && !rests[s] -> rests[s] = 1 }
  od
}
#endif

proctype Monitor()
{ byte s;
  atomic { timeout ->
    do
    :: s < NS -> assert(ended[s] == operations[s] && left[s] == 0); s++
    :: else -> break
    od;
#if !FAIL
    s = 0;
    do
    :: s < NS * PLACES -> assert(IS_CLEAN(placed[s]) && IS_CLEAN(fetched[s / PLACES])); s++
    :: else -> break
    od;
#endif
    assert(room[0] == PROCESSORS && room[1] == PROCESSORS) }
}

init
{ byte s, b;
  atomic {
    room[0] = PROCESSORS; room[1] = PROCESSORS;
    do
    :: s < NS ->
         b = 0; do :: b < BLOCKS(s) -> run Block(s, b); b++ :: else -> break od;
#if FAIL
         run Host(s);
#endif
         s++
    :: else -> break
    od;
    run Monitor() }
}
