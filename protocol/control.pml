/* The control channel between two nodes: docs/protocol.md §4. Frames get through once and in order, over carriers that lose, double
 * and reorder them, or die, as long as one lives.
 *
 * One stream s -> d of NF frames. Frames and acknowledgements are sets, as in rail.pml; each frame is sent by the carrier whose turn
 * it is and by the next one at each resend. A frame's loss grants one resend, EARLY grants resends without a loss. Carrier 1 always
 * lives; carrier 0 dies at any moment within DIE (what it carries is lost, and so is what is given to it afterwards).
 */
#ifndef NF
#define NF 3
#endif
#ifndef LOSS
#define LOSS 1
#endif
#ifndef DUP
#define DUP 1
#endif
#ifndef EARLY
#define EARLY 1
#endif
#ifndef DIE
#define DIE 1
#endif
#define NCARRIERS 2
#define F(carrier, frame) ((carrier) * NF + (frame))

bit  frame[NCARRIERS * NF];     /* under way on a carrier */
byte ack[NCARRIERS];            /* under way: cumulative acknowledgement + 1; 0 none. An older one may overtake: see Lost */
byte acknowledged;              /* sender: all frames below */
byte turn;                      /* sender: carrier of the next transmission */
byte sent;                      /* frames handed to the channel */
byte delivered;                 /* receiver: all frames below went to the program, in order */
bit  early[NF];
byte order[NF];                 /* ghost: what the program got, in the order it got it */
byte count;
bit  resend_due;
byte loss = LOSS, dup = DUP, spare = EARLY, die = DIE;
bit  dead;

inline put(c, f) { if :: c == 0 && dead -> resend_due = 1 :: else -> frame[F(c, f)] = 1 fi }

active proctype Sender()
{ byte i;
end:
  do
  :: atomic { sent < NF -> put(turn, sent); sent++ }
  :: atomic { acknowledged < sent && (resend_due || spare > 0) ->
       if :: resend_due -> resend_due = 0 :: else -> spare-- fi;
#ifndef MUT_SAME_CARRIER
       turn = (turn + 1) % NCARRIERS;
#endif
       i = acknowledged;
       do :: i < sent -> put(turn, i); i++ :: else -> break od; i = 0 }
#define ACKED(c) :: atomic { ack[c] != 0 -> if :: ack[c] - 1 > acknowledged -> acknowledged = ack[c] - 1 :: else fi; \
    if :: ack[c] = 0 :: dup > 0 -> dup-- fi }
  ACKED(0) ACKED(1)
  od
}

inline deliver(f) { assert(f == count); order[count] = f; count++ }

inline answer(c) {
  if
  :: c == 0 && dead -> resend_due = 1
  :: else -> if :: ack[c] == 0 || ack[c] - 1 < delivered -> ack[c] = delivered + 1 :: else fi
  fi
}

#ifdef MUT_NO_SEQUENCE
#define ARRIVED(f) deliver(f); delivered++
#else
#define ARRIVED(f) \
    if \
    :: f < delivered /* seen */ \
    :: f >= delivered -> early[f] = 1; \
       do :: delivered < NF && early[delivered] -> early[delivered] = 0; deliver(delivered); delivered++ :: else -> break od \
    fi
#endif
#ifdef MUT_ACK_NEW_ONLY
#define ANSWER(c, f) if :: before != delivered -> answer(c) :: else fi
#else
#define ANSWER(c, f) answer(c)
#endif
#define RECEIVE(c, f) :: atomic { frame[F(c, f)] -> if :: frame[F(c, f)] = 0 :: dup > 0 -> dup-- fi; before = delivered; ARRIVED(f); ANSWER(c, f); before = 0 }

active proctype Receiver()
{ byte before;
end:
  do
#if NF == 2
  RECEIVE(0, 0) RECEIVE(0, 1) RECEIVE(1, 0) RECEIVE(1, 1)
#else
  RECEIVE(0, 0) RECEIVE(0, 1) RECEIVE(0, 2) RECEIVE(1, 0) RECEIVE(1, 1) RECEIVE(1, 2)
#endif
  od
}

/* An acknowledgement is lost, or a frame; or carrier 0 dies with all it carries. */
active proctype Faults()
{ byte i;
end:
  do
#define LOSE(c, f) :: atomic { loss > 0 && frame[F(c, f)] -> loss--; frame[F(c, f)] = 0; resend_due = 1 }
  LOSE(0, 0) LOSE(0, 1) LOSE(1, 0) LOSE(1, 1)
  :: atomic { loss > 0 && ack[0] -> loss--; ack[0] = 0; resend_due = 1 }
  :: atomic { loss > 0 && ack[1] -> loss--; ack[1] = 0; resend_due = 1 }
  :: atomic { loss + dup + spare + die > 0 -> loss = 0; dup = 0; spare = 0; die = 0 }     /* no more faults: none may be needed to go on */
  :: atomic { die > 0 -> die--; dead = 1; resend_due = 1; ack[0] = 0; i = 0; do :: i < NF -> frame[F(0, i)] = 0; i++ :: else -> break od; i = 0 }
  od
}

active proctype Monitor()
{ byte i;
  atomic { timeout -> assert(count == NF && acknowledged == NF); do :: i < NF -> assert(order[i] == i); i++ :: else -> break od }
}
