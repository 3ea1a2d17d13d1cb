/* Pieces of granted messages over indirect paths (docs/cuda.md, "Indirect paths"): in slots of a third GPU or of host memory.
 *
 * A station is a rank in a communicator: station s has rank s & 1, its peer is s ^ 1, and what it sends goes over one path, a ring of SLOTS
 * slots. It runs its operations one after another; each is a kernel of NB blocks, which begin in any order and at any time at which their
 * rank's GPU has a processor left (PROCESSORS), keep it until they leave, and wait inside no role: TAKE to the end of `push` is
 * IndirectRoles::take_slot, push and announce; LOOK to the end of `pull` is find_piece, take_piece, Roles::accept and empty_slot. Blocks
 * below STRAIGHT send straight, the others over the path while at least TAIL pieces of a message are unclaimed (path_of). The rank that
 * lends the slots runs nothing, and gives them back when all have left.
 *
 * PROGRAM 1: one pair. The source sends two messages in one operation. The destination receives them in two, and the kernel of the second
 *            one looks at no paths, so its grant names none.
 *         2: both ways at once, then once more in one direction.
 *         3: two communicators, crosswise: each rank sends in one and receives in the other, both with kernels on its GPU.
 *         4: two messages of a pair in one operation at both ends: any block pulls any piece. PLACES=1: the second one has the first one's
 *            place in the port (grant_after), so it is granted once that one is over, and the count of what came straight begins again.
 *
 * FAIL: a rank is stopped at any moment, the other one hears of it later. Who gives an operation up says `over` before it leaves, as
 * the copy of its host does later; it stays until its mate has no block left that may write, if that may write straight into its buffer
 * (gpu_ending.pml has the words of that). Numbers count what ended well, so the next operation has those of the one that was given up.
 *
 * Checked: no byte is overwritten before it is read or read before it is written, none lands twice or in another message's buffer, no
 * slot of memory that was given back is touched; every operation ends; where it was not stopped, with all of its bytes.
 */
#ifndef PROGRAM
#define PROGRAM 1
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef NB
#define NB 2
#endif
#ifndef NB_OTHER
#define NB_OTHER NB /* of the second communicator */
#endif
#ifndef PIECES
#define PIECES 3
#endif
#ifndef STRAIGHT
#define STRAIGHT 0
#endif
#ifndef TAIL
#define TAIL 0
#endif
#ifndef ROW
#define ROW 2       /* pieces that a block pushes before it looks for something else */
#endif
#ifndef PROCESSORS
#define PROCESSORS 1
#endif
#ifndef PLACES
#define PLACES NM
#endif
#ifndef FAIL
#define FAIL 0
#endif
#define JUNK 99
#define TAG(m, c) ((m) * 8 + (c) + 1)
#define ALL ((1 << PIECES) - 1)

#if PROGRAM == 1
#define NS 2
#define NM 2
byte src[NM] = { 0, 0 };
byte dst[NM] = { 1, 1 };
byte send_op[NM] = { 1, 1 };
byte receive_op[NM] = { 1, 2 };
byte send_place[NM] = { 0, 1 };         /* among the messages of its pair in the operation, Message::ordinal */
byte receive_place[NM] = { 0, 0 };
bit  looked_at[NM] = { 1, 0 };          /* by the destination's kernel, and so in the grant */
byte operations[NS] = { 1, 2 };
#define EACH_M(F) F(0) F(1)
#elif PROGRAM == 2
#define NS 2
#define NM 3
byte src[NM] = { 0, 1, 0 };
byte dst[NM] = { 1, 0, 1 };
byte send_op[NM] = { 1, 1, 2 };
byte receive_op[NM] = { 1, 1, 2 };
byte send_place[NM] = { 0, 0, 0 };
byte receive_place[NM] = { 0, 0, 0 };
bit  looked_at[NM] = { 1, 1, 1 };
byte operations[NS] = { 2, 2 };
#define EACH_M(F) F(0) F(1) F(2)
#elif PROGRAM == 3
#define NS 4
#define NM 2
byte src[NM] = { 0, 3 };
byte dst[NM] = { 1, 2 };
byte send_op[NM] = { 1, 1 };
byte receive_op[NM] = { 1, 1 };
byte send_place[NM] = { 0, 0 };
byte receive_place[NM] = { 0, 0 };
bit  looked_at[NM] = { 1, 1 };
byte operations[NS] = { 1, 1, 1, 1 };
#define EACH_M(F) F(0) F(1)
#else
#define NS 2
#define NM 2
byte src[NM] = { 0, 0 };
byte dst[NM] = { 1, 1 };
byte send_op[NM] = { 1, 1 };
byte receive_op[NM] = { 1, 1 };
byte send_place[NM] = { 0, 1 };
byte receive_place[NM] = { 0, 1 };
bit  looked_at[NM] = { 1, 1 };
byte operations[NS] = { 1, 1 };
#define EACH_M(F) F(0) F(1)
#endif
#define NUMBERS 4

byte room[2];                           /* processors of a rank's GPU */
byte ended[NS], left[NS];               /* operations; blocks of the one that runs, which is the next one */
bit  quit[NS];                          /* a block of it was stopped */
/* a message's state at both ends */
byte claimed[NM];                       /* source: pieces that blocks have taken on */
byte granted[NM];                       /* destination */
bit  complete[NM];                      /* destination: its place is another one's */
byte pulled_of[NM];                     /* destination: pieces that came over the path */
byte placed[NM];                        /* destination, by place: pieces that came straight */
byte user[NM];                          /* its buffer: pieces that came, as a mask */
/* a pair's words; at index s what belongs to what s sends */
byte sent[NS], received[NS];            /* messages of operations that ended well; `received` at index of the destination */
byte grant[NS * NUMBERS];               /* by number: 1 + the destination's message */
byte taken[NS], pulled[NS];
byte freed[NS * SLOTS], filled[NS * SLOTS];
byte record_number[NS * SLOTS], record_piece[NS * SLOTS];
byte bytes[NS * SLOTS];                 /* the lent memory */
bit  lent = 1;
bit  said[NS], gone[NS];                /* a rank says that it leaves, and has given back the memory in front of it */
#if FAIL
bit  over[NS], stop[NS], halted[NS], rests[NS];
byte open[NS];                          /* blocks that may write */
byte faults = 1;
#endif

#define RANK(s) ((s) & 1)
#define BLOCKS(s) ((s) < 2 -> NB : NB_OTHER)
#define PEER (s ^ 1)
#define SLOT(r, piece) ((r) * SLOTS + (piece) % SLOTS)      /* piece counts from 0 here; words have 1 + piece */
#ifdef MUT_PAIRS_SHARE_SLOTS
#define LENT(r, piece) ((piece) % SLOTS)
#else
#define LENT(r, piece) SLOT(r, piece)
#endif
#define SENDS(m)    (src[m] == s && send_op[m] == op)
#define RECEIVES(m) (dst[m] == s && receive_op[m] == op)
#define SENT_AS(m)     (sent[src[m]] + send_place[m] + 1)
#define RECEIVED_AS(m) (received[dst[m]] + receive_place[m] + 1)
#define PLACE(m) ((m) % PLACES)
#define AFTER(m) (PLACES == 1 && (m) == 1)
#define IS_OVER(m) (complete[m] || (granted[m] == GRANTED && placed[PLACE(m)] + pulled_of[m] >= PIECES))
#define GRANTED 1
#define BEING_GRANTED 2
#define GRANT(m) grant[src[m] * NUMBERS + SENT_AS(m)]
#define IN_BUFFER(m) assert(ended[dst[m]] == receive_op[m] - 1)
#define THERE assert(lent)

#ifdef MUT_PUSHES_WITHOUT_GRANT
#define MAY_PUSH(m) (!moves_nothing)
#define NAMED(m)    true
#define TARGET(m)   (m)
#else
#define MAY_PUSH(m) (!moves_nothing && GRANT(m) != 0)
#define TARGET(m)   (GRANT(m) - 1)
#ifdef MUT_OWN_PATHS_ONLY
#define NAMED(m)    true
#else
#define NAMED(m)    (looked_at[TARGET(m)])
#endif
#endif
#define OVER_PATH(m) (b >= STRAIGHT && NAMED(m) && PIECES - claimed[m] >= TAIL)
#ifdef MUT_DEALT_IN_ADVANCE
#define TO_CLAIM(m) (dealt[m] < PIECES)
#define CLAIM(m) own[m] = dealt[m] + 1; dealt[m] = dealt[m] + NB; claimed[m]++
#else
#define TO_CLAIM(m) (claimed[m] < PIECES)
#define CLAIM(m) claimed[m]++; own[m] = claimed[m]
#endif

#ifdef MUT_TAKES_USED_SLOT
#define IS_FREE(piece) true
#elif defined(MUT_COUNTS_FREED)
#define IS_FREE(piece) ((piece) < SLOTS + freed_in_all[s])
#else
#define IS_FREE(piece) (freed[SLOT(s, piece)] == ((piece) < SLOTS -> 0 : (piece) - SLOTS + 1))
#endif
byte freed_in_all[NS];                  /* only for the mutation */

#ifdef MUT_PUSH_WAITS
#define LOOKS_FREE true
#else
#define LOOKS_FREE IS_FREE(taken[s])
#endif

#define BEGIN(m) \
    if \
    :: RECEIVES(m) && granted[m] == 0 && !AFTER(m) -> granted[m] = GRANTED; \
         if :: !moves_nothing -> grant[PEER * NUMBERS + RECEIVED_AS(m)] = m + 1 :: else fi \
    :: SENDS(m) && m % NB == b && TO_CLAIM(m) -> CLAIM(m) \
    :: else \
    fi;
#define TAKE(m)     :: atomic { SENDS(m) && own[m] != 0 && MAY_PUSH(m) && OVER_PATH(m) && LOOKS_FREE -> i = m; t = taken[s] } goto push
#define STRAIGHTWAY(m) :: atomic { SENDS(m) && own[m] != 0 && MAY_PUSH(m) && !OVER_PATH(m) -> i = TARGET(m); c = own[m] - 1; own[m] = 0; \
    IN_BUFFER(i) } atomic { IN_BUFFER(i); assert(i == m && !(user[i] & (1 << c))); user[i] = user[i] | (1 << c); placed[PLACE(i)]++; \
    i = 0; c = 0 }
#define OWN(m)      :: atomic { SENDS(m) && own[m] == 0 && MAY_PUSH(m) && TO_CLAIM(m) -> CLAIM(m) }
#define LOOKS(m)    (RECEIVES(m) && looked_at[m] && granted[m] == GRANTED && !IS_OVER(m)) ||
#define FIND(m)     if :: RECEIVES(m) && n == RECEIVED_AS(m) -> i = m; n = 0 :: else fi;
#define TO_DO(m)    (SENDS(m) && (own[m] != 0 || TO_CLAIM(m))) || (RECEIVES(m) && !IS_OVER(m)) ||
#define MOVE_ON(m)  if :: SENDS(m) -> sent[s]++ :: RECEIVES(m) -> received[s]++; assert(user[m] == ALL) :: else fi;
/* Roles::grant_again, of message 1 in the place of message 0 */
#ifdef MUT_GRANTS_AT_ONCE
#define MAY_GRANT_AGAIN true
#else
#define MAY_GRANT_AGAIN IS_OVER(0)
#endif
#define GRANT_AGAIN grant[PEER * NUMBERS + RECEIVED_AS(1)] = 2
#define FORGET(m)   own[m] = 0;

proctype Block(byte s; byte b)
{ byte op, i, c, t, n, row, next, next_piece;
  byte own[NM];
#ifdef MUT_DEALT_IN_ADVANCE
  byte dealt[NM] = b;
#endif
  bit moves_nothing, lost, stopped;
end:
  do
  :: atomic { op == ended[s] && op < operations[s] && room[RANK(s)] > 0 ->
       room[RANK(s)]--; op++;
#if FAIL
#ifndef MUT_OVER_IS_NOT_READ
       moves_nothing = over[s];
#endif
       open[s] = open[s] + !moves_nothing;
#endif
       EACH_M(BEGIN) i = 0 }
turn:
     do
     EACH_M(TAKE)
     EACH_M(STRAIGHTWAY)
     EACH_M(OWN)
#if PROGRAM == 4 && PLACES == 1
     :: atomic { RECEIVES(1) && granted[1] == 0 && !moves_nothing && MAY_GRANT_AGAIN -> granted[1] = BEING_GRANTED }
        atomic { complete[0] = 1 };
#ifdef MUT_CLEARS_AFTER_GRANT
        atomic { granted[1] = GRANTED; GRANT_AGAIN };
        atomic { placed[0] = 0 }
#else
        atomic { placed[0] = 0 };
        atomic { granted[1] = GRANTED; GRANT_AGAIN }
#endif
#endif
     :: atomic { !lost && !moves_nothing && (EACH_M(LOOKS) false) && filled[SLOT(PEER, pulled[PEER])] == pulled[PEER] + 1 ->
          t = pulled[PEER]; n = record_number[SLOT(PEER, t)]; c = record_piece[SLOT(PEER, t)] }
        goto pull
     :: atomic { lost -> lost = 0 }      /* Roles::passed_over_: the turn after a lost race is not the path's */
#if FAIL
     :: atomic { stop[s] -> stopped = 1; break }
#endif
     :: atomic { !(EACH_M(TO_DO) false) && (!moves_nothing) -> break }
     od;
     atomic {
       lost = 0; EACH_M(FORGET)
#if FAIL
       open[s] = open[s] - !moves_nothing; moves_nothing = 0;
#endif
       quit[s] = quit[s] || stopped; stopped = 0;
       left[s]++;
       if
       :: left[s] < BLOCKS(s) -> goto leave
       :: left[s] == BLOCKS(s) && !quit[s] -> EACH_M(MOVE_ON) skip
#if FAIL
       :: left[s] == BLOCKS(s) && quit[s] ->
#ifndef MUT_GIVES_UP_SILENTLY
          over[s] = 1;
#endif
          goto rest
#endif
       fi }
next_operation:
     atomic { left[s] = 0; quit[s] = 0; ended[s]++ };
leave:
     atomic { room[RANK(s)]++ }
  od;

#if FAIL
rest:   /* Roles::outlast_grants: until the host says kLeave, if a mate may still write straight into its buffers */
  atomic { rests[PEER] || !(EACH_M(TO_DO) false) -> goto next_operation };
#endif

push:
#ifdef MUT_PUSH_WAITS
  IS_FREE(taken[s]);
#endif
  atomic {
    if
#ifdef MUT_TAKES_WITHOUT_SWAP
    :: true -> taken[s] = t + 1; c = own[i] - 1; own[i] = 0; row = 1
#else
    :: taken[s] == t && IS_FREE(t) -> taken[s]++; c = own[i] - 1; own[i] = 0; row = 1
    :: else -> i = 0; t = 0; goto turn
#endif
    fi };
fill:
  atomic { THERE; bytes[LENT(s, t)] = JUNK;
#ifdef MUT_ANNOUNCES_BEFORE_COPY
    record_number[SLOT(s, t)] = SENT_AS(i); record_piece[SLOT(s, t)] = c; filled[SLOT(s, t)] = t + 1
#endif
  }
  /* the next one, while this one is copied */
  atomic {
    if
    :: row < ROW && own[i] == 0 && TO_CLAIM(i) -> CLAIM(i)
    :: else
    fi;
    if
    :: row < ROW && own[i] != 0 && OVER_PATH(i) && IS_FREE(taken[s]) ->
       next = taken[s] + 1; next_piece = own[i] - 1; own[i] = 0; taken[s]++
#ifdef MUT_ROW_WAITS
    :: row == ROW || own[i] == 0 || !OVER_PATH(i) -> skip
#else
    :: else
#endif
    fi };
  atomic { THERE; bytes[LENT(s, t)] = TAG(i, c) };
#ifdef MUT_FILLED_BEFORE_RECORD
  atomic { assert(!gone[PEER]); filled[SLOT(s, t)] = t + 1 };
  atomic { record_number[SLOT(s, t)] = SENT_AS(i); record_piece[SLOT(s, t)] = c };
#elif !defined(MUT_ANNOUNCES_BEFORE_COPY)
  atomic { assert(!gone[PEER]); record_number[SLOT(s, t)] = SENT_AS(i); record_piece[SLOT(s, t)] = c };
  atomic { assert(!gone[PEER]); filled[SLOT(s, t)] = t + 1 };
#endif
  atomic {
    if
    :: next != 0 -> t = next - 1; c = next_piece; next = 0; next_piece = 0; row++; goto fill
    :: else -> i = 0; t = 0; c = 0; row = 0; goto turn
    fi };

pull:
  atomic {
    if
#ifdef MUT_PULLS_WITHOUT_SWAP
    :: true -> pulled[PEER] = t + 1; EACH_M(FIND) assert(n == 0)
#else
    :: pulled[PEER] == t -> pulled[PEER]++; EACH_M(FIND) assert(n == 0)   /* else accept() finds a bad record */
    :: else -> lost = 1; t = 0; n = 0; c = 0; goto turn
#endif
    fi };
#ifdef MUT_FREES_BEFORE_READ
  atomic { freed[SLOT(PEER, t)] = t + 1; freed_in_all[PEER]++ };
#endif
  atomic { THERE; assert(bytes[LENT(PEER, t)] == TAG(i, c)) };
  atomic { THERE; assert(bytes[LENT(PEER, t)] == TAG(i, c)); assert(!(user[i] & (1 << c))); user[i] = user[i] | (1 << c); c = 0 };
#ifndef MUT_FREES_BEFORE_READ
  atomic { assert(!gone[PEER]); freed[SLOT(PEER, t)] = t + 1; freed_in_all[PEER]++; t = 0 };
#endif
  atomic { pulled_of[i]++; i = 0; t = 0; goto turn }
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
#else
/* How a rank leaves: it says so when its operations have ended, and gives back the memory in front of it when its mate has said so. */
proctype Host(byte s)
{
  atomic { ended[s] == operations[s] -> said[s] = 1 };
#ifdef MUT_LEAVES_ALONE
  atomic { gone[s] = 1 }
#else
  atomic { said[PEER] -> gone[s] = 1 }
#endif
}
/* The rank that lends, which had nothing to send or receive. */
proctype Lender()
{ byte s;
#ifndef MUT_LENDER_LEAVES_ALONE
  do :: atomic { s < NS && said[s] -> s++ } :: atomic { s == NS -> break } od;
#endif
  atomic { lent = 0 }
}
#endif

#define COMPLETE(m) assert(user[m] == ALL);
proctype Monitor()
{ byte s;
  atomic { timeout ->
    do
    :: s < NS -> assert(ended[s] == operations[s] && left[s] == 0);
#if !FAIL
       assert(pulled[s] == taken[s]);
#endif
       s++
    :: else -> break
    od;
#if !FAIL
    EACH_M(COMPLETE)
#endif
    assert(room[0] == PROCESSORS && room[1] == PROCESSORS) }
}

init
{ byte s, b;
  atomic {
    room[0] = PROCESSORS; room[1] = PROCESSORS;
    do
    :: s < NS -> b = 0; do :: b < BLOCKS(s) -> run Block(s, b); b++ :: else -> break od; run Host(s); s++
    :: else -> break
    od;
#if !FAIL
    run Lender();
#endif
    run Monitor() }
}
