/* Operations of packets alone (src/cuda/packet_roles.hpp): the messages of a pair and direction as one train, by warps that own every n-th
 * packet of it from the start. A train of one message is a message.
 *
 * Two ranks. A rank's operations run one after another; each moves a train in each direction, of so many packets or none. Packets of a
 * pair are numbered through; number q lies in slot q mod SLOTS, may be written when number q - SLOTS was taken (its credit), is there
 * when all its lines (two here) have its flag, and is credited when it has been loaded. Rank 0 has WARPS_0 warps and rank 1 WARPS_1, each
 * a block here; they begin at any time, all of them (PROCESSORS each), and the one that begins last moves the counts on when it has moved
 * its packets, while others may be moving theirs. A warp does what can be done, in any order between its trains, and of a train in the
 * order of its packets.
 *
 * SPLIT: the first half of a rank's warps only send, the others only receive (split_warps).
 *
 * PROGRAM 1: both ways at once, more packets than slots, and once more in one direction.
 *         2: what one rank sends as one train the other one receives in two operations, either way.
 *
 * FAIL: a rank is stopped at any moment, the other one hears of it later. Who gives an operation up says `over` before its kernel ends, as
 * the copy of its host does later; what begins then has numbers that no credit and no flag has (kNeverMoved), also where the operation
 * before it ended well with some warps that had read `over`.
 *
 * Checked: no packet is overwritten before it was read, none is taken half, twice or for another one; every operation ends; where it was
 * not stopped, with all of its bytes.
 */
#ifndef PROGRAM
#define PROGRAM 1
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WARPS_0
#define WARPS_0 2
#endif
#ifndef WARPS_1
#define WARPS_1 2
#endif
#ifndef SPLIT
#define SPLIT 0
#endif
#ifndef PROCESSORS
#define PROCESSORS 3
#endif
#ifndef FAIL
#define FAIL 0
#endif
#define OPERATIONS 2
#define NEVER 60
#define NOT_MINE 99

/* of operation 1 and 2 of rank 0, then of rank 1: packets, and those of the program before them */
#if PROGRAM == 1
byte sends[4] = { 4, 2, 4, 0 };
byte receives[4] = { 4, 0, 4, 2 };
byte sent_before[4] = { 0, 4, 0, 4 };
byte received_before[4] = { 0, 4, 0, 4 };
#else
byte sends[4] = { 4, 0, 2, 2 };
byte receives[4] = { 2, 2, 2, 2 };
byte sent_before[4] = { 0, 4, 0, 2 };
byte received_before[4] = { 0, 2, 0, 2 };
#endif

byte room[2];
byte ended[2], begun[2], left[2];
bit  quit[2];
byte sent[2], received[2];              /* Count::value of the rank's port */
/* at index rank * SLOTS + slot, what that rank sends */
byte flag[2 * 2 * SLOTS], data[2 * 2 * SLOTS];  /* of the first and second line of each packet; data: 1 + the program's packet */
byte credit[2 * SLOTS];                 /* flag of the last packet that was taken */
byte user[2];                           /* packets that came from that rank, a bit each */
byte taken_in_all[2];                   /* only for the mutation */
#if FAIL
bit  over[2], stop[2], halted[2];
byte faults = 1;
#endif

#define PEER (1 - r)
#define WARPS (r == 0 -> WARPS_0 : WARPS_1)
#if SPLIT
#define SENDERS   (WARPS / 2)
#define RECEIVERS (WARPS - WARPS / 2)
#else
#define SENDERS   WARPS
#define RECEIVERS WARPS
#endif
#define OF(r, op) ((r) * OPERATIONS + (op) - 1)
#define TO_SEND    sends[OF(r, op)]
#define TO_RECEIVE receives[OF(r, op)]
#define SLOT(r, q) ((r) * SLOTS + (q) % SLOTS)
#define LINE(r, q, line) (2 * SLOT(r, q) + (line))
#define NUMBER (number + next)
#define NUMBER_THERE (number_there + next_there)

#ifdef MUT_NO_CREDIT
#define IS_CREDITED true
#elif defined(MUT_CREDITS_ARE_COUNTED)
#define IS_CREDITED (NUMBER < SLOTS + taken_in_all[r])
#else
#define IS_CREDITED (NUMBER < SLOTS || credit[SLOT(r, NUMBER)] >= NUMBER - SLOTS + 1)
#endif
#ifdef MUT_FLAG_SAYS_FULL
#define FLAG(q) 1
#else
#define FLAG(q) ((q) + 1)
#endif
#define HAS_LINE(line) (flag[LINE(PEER, NUMBER_THERE, line)] == FLAG(NUMBER_THERE))
#ifdef MUT_TAKES_AT_FIRST_LINE
#define IS_THERE HAS_LINE(0)
#else
#define IS_THERE (HAS_LINE(0) && HAS_LINE(1))
#endif
#ifdef MUT_SENDS_FIRST
#define MAY_RECEIVE (next >= TO_SEND)
#else
#define MAY_RECEIVE true
#endif
#ifdef MUT_LAST_MESSAGE_FIRST
#define FIRST(place, warps, packets) ((place) < (warps) && (place) < (packets) -> (packets) - 1 - (place) : NOT_MINE)
#define NEXT(next, warps) ((next) >= (warps) -> (next) - (warps) : NOT_MINE)
#else
#define FIRST(place, warps, packets) ((place) < (warps) -> (place) : NOT_MINE)
#define NEXT(next, warps) ((next) + (warps))
#endif
#define EXPECTED (received_before[OF(r, op)] + next_there)
#define READ(line) assert(data[LINE(PEER, NUMBER_THERE, line)] == EXPECTED + 1)

proctype Warp(bit r; byte w)
{ byte op, number, next, number_there, next_there;
  bit stopped, is_over, is_last;
end:
  do
  :: atomic { op == ended[r] && op < OPERATIONS && room[r] > 0 ->
       room[r]--; op++;
       number = sent[r]; number_there = received[r];
       begun[r]++;
#ifdef MUT_COUNTS_AT_FIRST
       is_last = begun[r] == 1;
#else
       is_last = begun[r] == WARPS;
#endif
#if FAIL
       if :: over[r] -> is_over = 1; number = number + NEVER; number_there = number_there + NEVER :: else fi;
#endif
       next = FIRST(w, SENDERS, TO_SEND);
       next_there = FIRST(WARPS - 1 - w, RECEIVERS, TO_RECEIVE) }    /* dealt from the other end */
     do
     :: atomic { next < TO_SEND && IS_CREDITED ->
          flag[LINE(r, NUMBER, 0)] = FLAG(NUMBER); data[LINE(r, NUMBER, 0)] = sent_before[OF(r, op)] + next + 1 }
        atomic { flag[LINE(r, NUMBER, 1)] = FLAG(NUMBER); data[LINE(r, NUMBER, 1)] = sent_before[OF(r, op)] + next + 1;
          next = NEXT(next, SENDERS) }
     :: atomic { MAY_RECEIVE && next_there < TO_RECEIVE && IS_THERE ->
#ifdef MUT_CREDIT_FIRST
          credit[SLOT(PEER, NUMBER_THERE)] = NUMBER_THERE + 1; taken_in_all[PEER]++ }
        atomic {
#endif
          READ(0) }
        atomic { READ(1);
#ifndef MUT_CREDIT_FIRST
          credit[SLOT(PEER, NUMBER_THERE)] = NUMBER_THERE + 1; taken_in_all[PEER]++;
#endif
          assert(!(user[PEER] & (1 << EXPECTED))); user[PEER] = user[PEER] | (1 << EXPECTED);
          next_there = NEXT(next_there, RECEIVERS) }
#if FAIL
     :: atomic { stop[r] -> stopped = 1; break }
#endif
     :: atomic { next >= TO_SEND && next_there >= TO_RECEIVE -> break }
     od;
     if
     :: atomic { is_last -> begun[r] = 0; is_last = 0;
          if :: !is_over -> sent[r] = number + TO_SEND; received[r] = number_there + TO_RECEIVE :: else fi }
     :: !is_last
     fi;
     /* with the last one the kernel ends */
     atomic {
#if FAIL
       if :: stopped -> over[r] = 1 :: else fi;
#endif
       quit[r] = quit[r] || stopped; left[r]++;
       if
       :: left[r] < WARPS
       :: left[r] == WARPS ->
            assert(quit[r] || ((user[PEER] >> received_before[OF(r, op)]) & ((1 << TO_RECEIVE) - 1)) == (1 << TO_RECEIVE) - 1);
            left[r] = 0; quit[r] = 0; ended[r]++
       fi;
       room[r]++; stopped = 0; is_over = 0; number = 0; number_there = 0; next = 0; next_there = 0 }
  od
}

#if FAIL
proctype Host(bit r)
{
end:
  do
  :: atomic { faults > 0 && !stop[r] -> faults--; stop[r] = 1 }
  :: atomic { stop[PEER] && !stop[r] -> stop[r] = 1 }
  :: atomic { stop[r] && !halted[r] -> halted[r] = 1; over[r] = 1 }
  od
}
#endif

proctype Monitor()
{
  atomic { timeout -> assert(ended[0] == OPERATIONS && ended[1] == OPERATIONS && room[0] == PROCESSORS && room[1] == PROCESSORS) }
}

init
{ byte w;
  atomic {
    room[0] = PROCESSORS; room[1] = PROCESSORS;
    do :: w < WARPS_0 -> run Warp(0, w); w++ :: else -> break od;
    w = 0;
    do :: w < WARPS_1 -> run Warp(1, w); w++ :: else -> break od;
#if FAIL
    run Host(0); run Host(1);
#endif
    run Monitor() }
}
