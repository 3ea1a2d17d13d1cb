/* Chunks of one message over rails: docs/protocol.md §3 (slots), §5, §6, §7, §12.
 *
 * Source S on node A, destination D on node B, NL links. Link l is served by Tx(l) on A and by the receiver RXN(l) on B, which
 * serves all links into its NIC from one pool of NR slots. What is checked:
 *   - every run is finite and ends with both sides complete (monitor; searched for cycles too); the source only when all chunks have
 *     landed, after which it sends none again;
 *   - no byte of another chunk reaches the user's buffer, nothing reaches it after completion, no chunk is counted twice;
 *   - at the end every slot of a live proxy is free again.
 * Frames on a rail are a set: any order, and within the budgets LOSS, DUP, RESEND (a timer that fires early), FLAP (a link
 * goes down though its wire is good), CUT (a wire breaks for ever), TXEXIT / RXEXIT (a proxy's process ends), RXFLAP (a receiver
 * gives up on a link that is good). A frame's loss makes its timer fire once; without loss timers fire only from RESEND. That
 * keeps runs finite without assuming anything about time.
 *
 * A transfer's frames name (generation, t); t is never reused, so the generation is kept beside t instead of in each frame.
 * A data frame is three events, as with a rendezvous: sent, bytes begin to move into the rx slot, last byte. The bytes are read
 * from the tx slot at the *last* event as long as the transport has not let go of it.
 */
#ifndef NL
#define NL 1            /* links */
#endif
#ifndef NN
#define NN NL           /* receiving NICs: NL (a rail each), or 1 (all links into one NIC) */
#endif
#ifndef NO
#define NO NL           /* sending NICs: NL, or 1 (one NIC has all links, and one pool of tx slots) */
#endif
#ifndef ND
#define ND 1            /* destinations on node B: chunk c is of the message to destination c % ND */
#endif
#ifndef NC
#define NC 2            /* chunks of the message */
#endif
#ifndef NT
#define NT 4            /* transfers a link can number */
#endif
#ifndef NX
#define NX 1            /* tx slots of S at each tx owner */
#endif
#ifndef NR
#define NR 1            /* rx slots of a receiving NIC */
#endif
#ifndef NG
#define NG 4            /* generations of a link */
#endif
#ifndef AHEAD
#define AHEAD 0         /* transfers into a NIC that may be accepted before they are offered: fewer than NR */
#endif
#ifndef LOSS
#define LOSS 0
#endif
#ifndef DUP
#define DUP 0
#endif
#ifndef RESEND
#define RESEND 0
#endif
#ifndef FLAP
#define FLAP 0
#endif
#ifndef CUT
#define CUT 0
#endif
#ifndef TXEXIT
#define TXEXIT 0
#endif
#ifndef RXEXIT
#define RXEXIT 0
#endif
#ifndef DEXIT
#define DEXIT 0
#endif
#ifndef RXFLAP
#define RXFLAP 0
#endif

#define RXN(l)   ((l) % NN)
#define TXN(l)   ((l) % NO)
#define DEST(c)  ((c) % ND)
#define TAG(c)   ((c) + 1)      /* bytes of chunk c; 0 = nothing, JUNK = half written */
#define JUNK     99
#define I(l, t)  ((l) * NT + (t))
#define XS(l, k) (TXN(l) * NX + (k))
#define RS(n, k) ((n) * NR + (k))
#define UP(w)    ((w) & 1)
#define GEN(w)   ((w) >> 1)

/* loops over t, as options of a selection */
#if NT == 2
#define EACH_T(F) F(0) F(1)
#define EACH_TA(F, a) F(0, a) F(1, a)
#define EACH_TB(F, a, b) F(0, a, b) F(1, a, b)
#elif NT == 3
#define EACH_T(F) F(0) F(1) F(2)
#define EACH_TA(F, a) F(0, a) F(1, a) F(2, a)
#define EACH_TB(F, a, b) F(0, a, b) F(1, a, b) F(2, a, b)
#elif NT == 4
#define EACH_T(F) F(0) F(1) F(2) F(3)
#define EACH_TA(F, a) F(0, a) F(1, a) F(2, a) F(3, a)
#define EACH_TB(F, a, b) F(0, a, b) F(1, a, b) F(2, a, b) F(3, a, b)
#elif NT == 5
#define EACH_T(F) F(0) F(1) F(2) F(3) F(4)
#define EACH_TA(F, a) F(0, a) F(1, a) F(2, a) F(3, a) F(4, a)
#define EACH_TB(F, a, b) F(0, a, b) F(1, a, b) F(2, a, b) F(3, a, b) F(4, a, b)
#else
#define EACH_T(F) F(0) F(1) F(2) F(3) F(4) F(5)
#define EACH_TA(F, a) F(0, a) F(1, a) F(2, a) F(3, a) F(4, a) F(5, a)
#define EACH_TB(F, a, b) F(0, a, b) F(1, a, b) F(2, a, b) F(3, a, b) F(4, a, b) F(5, a, b)
#endif
#if NL == 1
#define EACH_L(F) F(0)
#define EACH_LT(F) EACH_TA(F, 0)
#define EACH_LTJ(F) EACH_TB(F, 0, 0) EACH_TB(F, 0, 1)
#else
#define EACH_L(F) F(0) F(1)
#define EACH_LT(F) EACH_TA(F, 0) EACH_TA(F, 1)
#define EACH_LTJ(F) EACH_TB(F, 0, 0) EACH_TB(F, 0, 1) EACH_TB(F, 1, 0) EACH_TB(F, 1, 1)
#endif
#if NC == 1
#define EACH_C(F) F(0)
#elif NC == 2
#define EACH_C(F) F(0) F(1)
#else
#define EACH_C(F) F(0) F(1) F(2)
#endif

/* source: chunk */
#define TODO 0
#define OUT  1
#define DONE 2
byte chunk_state[NC];
byte chunk_link[NC];
byte chunk_word[NC];
bit  confirmed[NC];             /* `confirmed` records in S's rings: they stay there when their writer's process ends */
bit  has_landed[NC];            /* for its destination; only looked at by assertions */
bit  sent_all, received_all[ND];        /* operations ended */

/* node A: board words, tx slots, announcement rings S -> tx owner */
byte word[NL];
byte tx_flag[NO * NX];
byte tx_bytes[NO * NX];
chan forward[NL] = [NX] of { byte, byte, byte, byte };   /* slot, turn, chunk, word */

/* tx owner: transfers */
#define NONE    0
#define OFFERED 1
#define SENT    2
#define CLOSING 3               /* over; tx slot kept until the transport lets go of it */
#define OVER    4
byte t_state[NL * NT];
byte t_slot[NL * NT];
byte t_gen[NL * NT];
byte t_tag[NL * NT];              /* chunk as the frames name it */
byte t_next[NL];
bit  need[NL * NT];             /* a frame of t was lost: t's timer will fire */

/* frames under way */
bit  offer[NL * NT];
bit  accept[NL * NT];
bit  got[NL * NT];
bit  unwanted[NL * NT];
byte acc_slot[NL * NT];         /* content of accept, echoed by data */
byte acc_turn[NL * NT];
#if AHEAD
byte acc_gen[NL * NT];          /* the generation that accept names: of a transfer that has not begun there is no other */
#endif
bit  hello[NL * NG];
bit  hello_back[NL * NG];
bit  fenced[NL * NG];           /* receiver -> sender: generation is over */

/* data frames: at most two of a transfer at once */
#define ABSENT  0
#define FLYING  1               /* bytes still in the tx slot */
#define LATE    2               /* let go of: bytes on the wire */
#define MOVING  3               /* into the rx slot, from the tx slot */
#define MOVING_LATE 4           /* into the rx slot, from the wire */
byte data[NL * NT * 2];
byte wire[NL * NT * 2];         /* bytes on the wire */
#define X(l, t, j) (I(l, t) * 2 + (j))

/* receiver */
#define NEW     0
#define WAITING 1
#define HELD    2
#define WRITING 3
#define FENCED  4               /* fenced while a write is under way */
#define LANDED  5
#define ENDED   6
#define REFUSED 7               /* nobody wanted it */
#define BEHIND  8               /* landed, and not announced yet: only in a mutation */
byte r_state[NL * NT];
byte r_gen[NL];
bit  r_gone[NL];                /* generation r_gen is fenced, no newer hello yet */
#if AHEAD
bit  r_ahead[NL * NT];          /* held, and nothing was heard of it */
byte ahead[NL];
byte r_next[NL];                /* above all transfers of the generation that were heard of, or accepted ahead; 0: none was */
#endif
byte rx_flag[NN * NR];
byte rx_bytes[NN * NR];
chan landed[NN * ND] = [NR] of { byte, byte, byte };     /* rings receiver -> destination: slot, turn, chunk */
bit  knows[NN];                 /* the receiver knows that destination 0 died */

/* destination */
bit  bitmap[NC];
byte user[NC];
byte marks[ND];
bit  d_dead[ND];

/* faults */
byte loss = LOSS, dup = DUP, resend = RESEND, flap = FLAP, cuts = CUT, txexit = TXEXIT, rxexit = RXEXIT, rxflap = RXFLAP, dexit = DEXIT;
bit  cut[NL];
bit  tx_dead[NL];
bit  rx_dead[NN];

/* a delivered frame is gone, or comes a second time */
#define TAKE(f) if :: f = 0 :: dup > 0 -> dup-- fi

/* ---- source ------------------------------------------------------------------------------------------------------------- */

#define LIVE(l) (UP(word[l]) && !tx_dead[l])

/* §6.3 net. The word is read before the copy and goes into the record. */
#ifdef MUT_WORD_AFTER_ANNOUNCE
#define REMEMBER_WORD(c, l) chunk_word[c] = word[l]
#else
#define REMEMBER_WORD(c, l) chunk_word[c] = w
#endif
#ifdef MUT_DONE_AT_FORWARD
#define AFTER_FORWARD DONE
#else
#define AFTER_FORWARD OUT
#endif
#ifdef MUT_TAKE_USED_SLOT
#define FREE_SLOT(f) true
#else
#define FREE_SLOT(f) !((f) & 1)
#endif

#define PUSH(c, l, k) \
  :: atomic { chunk_state[c] == TODO && LIVE(l) && FREE_SLOT(tx_flag[XS(l, k)]) && nfull(forward[l]) -> \
       w = word[l]; tx_flag[XS(l, k)] = (tx_flag[XS(l, k)] + 1) | 1; turn = tx_flag[XS(l, k)]; tx_bytes[XS(l, k)] = JUNK } \
     atomic { tx_bytes[XS(l, k)] = TAG(c) } \
     atomic { nfull(forward[l]) -> forward[l]!k, turn, c, w; chunk_state[c] = AFTER_FORWARD; chunk_link[c] = l } \
     atomic { REMEMBER_WORD(c, l); w = 0; turn = 0 }
#if NX == 1
#define PUSHES(c, l) PUSH(c, l, 0)
#else
#define PUSHES(c, l) PUSH(c, l, 0) PUSH(c, l, 1)
#endif

/* §6.5 retire: the word is another one, or the tx owner died. */
#ifdef MUT_RETIRE_BY_STATE
#define BROKEN(c) (!UP(word[chunk_link[c]]) || tx_dead[chunk_link[c]])
#else
#define BROKEN(c) (word[chunk_link[c]] != chunk_word[c] || tx_dead[chunk_link[c]])
#endif

#ifdef MUT_NO_RETIRE
#define RETIRE(c)
#else
#define RETIRE(c) :: atomic { chunk_state[c] == OUT && BROKEN(c) -> chunk_state[c] = TODO; chunk_link[c] = 0; chunk_word[c] = 0 }
#endif
#define FAIL(c)   :: atomic { chunk_state[c] != DONE && d_dead[DEST(c)] -> chunk_state[c] = DONE; chunk_link[c] = 0; chunk_word[c] = 0 }
#define CONFIRMED(c) :: atomic { chunk_state[c] != DONE && confirmed[c] -> assert(has_landed[c]); chunk_state[c] = DONE; chunk_link[c] = 0; chunk_word[c] = 0 }

#if NC == 1
#define ALL_DONE (chunk_state[0] == DONE)
#define ALL_BITS (bitmap[0])
#elif NC == 2
#define ALL_DONE (chunk_state[0] == DONE && chunk_state[1] == DONE)
#define ALL_BITS (bitmap[0] && bitmap[1])
#else
#define ALL_DONE (chunk_state[0] == DONE && chunk_state[1] == DONE && chunk_state[2] == DONE)
#define ALL_BITS (bitmap[0] && bitmap[1] && bitmap[2])
#endif

#if NL == 1
#define PUSH_ANYWHERE(c) PUSHES(c, 0)
#else
#define PUSH_ANYWHERE(c) PUSHES(c, 0) PUSHES(c, 1)
#endif

#define CHECK_LANDED(c) assert(has_landed[c] || d_dead[DEST(c)]);

active proctype S()
{ byte w, turn;
end:
  do
  EACH_C(PUSH_ANYWHERE)
  EACH_C(RETIRE)
  EACH_C(CONFIRMED)
#if DEXIT
  EACH_C(FAIL)
#endif
  :: atomic { !sent_all && ALL_DONE -> EACH_C(CHECK_LANDED) sent_all = 1 }    /* that it gets into the user's buffer is the monitor's and D's to check */
  od
}

/* ---- tx owner (§7, tx side) --------------------------------------------------------------------------------------------- */

#define USES_TX_SLOT(l, t) (data[X(l, t, 0)] == FLYING || data[X(l, t, 0)] == MOVING || data[X(l, t, 1)] == FLYING || data[X(l, t, 1)] == MOVING)
#ifdef MUT_FREE_TX_EARLY
#define LET_GO(l, t) true
#else
#define LET_GO(l, t) !USES_TX_SLOT(l, t)
#endif

inline send_data(i) {
  if
  :: data[2 * (i)] == ABSENT -> data[2 * (i)] = FLYING
  :: else -> if :: data[2 * (i) + 1] == ABSENT -> data[2 * (i) + 1] = FLYING :: else fi
  fi
}

/* The endpoint closes: the transport reads no tx slot any more; what was under way is on the wire, or lost there. */
inline close_endpoint(l) {
  i = 0;
  do
  :: i < NT * 2 ->
     if
     :: data[(l) * NT * 2 + i] == FLYING -> data[(l) * NT * 2 + i] = LATE; wire[(l) * NT * 2 + i] = tx_bytes[XS(l, t_slot[(l) * NT + i / 2])]
     :: data[(l) * NT * 2 + i] == MOVING -> data[(l) * NT * 2 + i] = MOVING_LATE; wire[(l) * NT * 2 + i] = tx_bytes[XS(l, t_slot[(l) * NT + i / 2])]
     :: else
     fi; i++
  :: else -> break
  od; i = 0
}

inline take_down(l) {
  word[l] = (GEN(word[l]) + 1) * 2;
  assert(GEN(word[l]) < NG);
#ifdef MUT_FREE_TX_EARLY
  i = 0;
#else
  close_endpoint(l);
#endif
  do
  :: i < NT ->
     if :: t_state[I(l, 0) + i] == OFFERED || t_state[I(l, 0) + i] == SENT -> t_state[I(l, 0) + i] = CLOSING; need[I(l, 0) + i] = 0 :: else fi; i++
  :: else -> break
  od; i = 0
}

#if AHEAD
#define BEGUN(l, t) (t_gen[I(l, t)] != 0)      /* until then the accept waits, at the sender or on its way */
#ifdef MUT_ACCEPT_OF_ANY_GENERATION
#define ACCEPT_IS_FOR(l, t, g) true
#else
#define ACCEPT_IS_FOR(l, t, g) (acc_gen[I(l, t)] == (g))
#endif
#define SAY_GENERATION(l, t) acc_gen[I(l, t)] = r_gen[l]
#else
#define BEGUN(l, t) true
#define ACCEPT_IS_FOR(l, t, g) true
#define SAY_GENERATION(l, t) skip
#endif
#define TX_ACCEPT(t) :: atomic { accept[I(l, t)] && BEGUN(l, t) -> TAKE(accept[I(l, t)]); \
    if :: t_state[I(l, t)] == OFFERED && ACCEPT_IS_FOR(l, t, t_gen[I(l, t)]) -> t_state[I(l, t)] = SENT; need[I(l, t)] = 0; send_data(I(l, t)) :: else fi }
#define TX_GOT(t) :: atomic { got[I(l, t)] -> TAKE(got[I(l, t)]); \
    if :: t_state[I(l, t)] == OFFERED || t_state[I(l, t)] == SENT -> t_state[I(l, t)] = CLOSING; need[I(l, t)] = 0; confirmed[t_tag[I(l, t)]] = 1 :: else fi }
#define TX_UNWANTED(t) :: atomic { unwanted[I(l, t)] -> TAKE(unwanted[I(l, t)]); \
    if :: t_state[I(l, t)] == OFFERED || t_state[I(l, t)] == SENT -> t_state[I(l, t)] = CLOSING; need[I(l, t)] = 0 :: else fi }
#define TX_TIMER(t) :: atomic { (t_state[I(l, t)] == OFFERED || t_state[I(l, t)] == SENT) && (need[I(l, t)] || resend > 0) -> \
    if :: need[I(l, t)] -> need[I(l, t)] = 0 :: else -> resend-- fi; \
    if :: t_state[I(l, t)] == OFFERED -> offer[I(l, t)] = 1 :: else -> send_data(I(l, t)) fi }
#define TX_FREE(t) :: d_step { t_state[I(l, t)] == CLOSING && LET_GO(l, t) -> t_state[I(l, t)] = OVER; \
    tx_flag[XS(l, t_slot[I(l, t)])]++ }

proctype Tx(byte l)
{ byte i, k, turn, c, w;
end:
  do
  /* forward record */
  :: atomic { forward[l]?k, turn, c, w ->
       if
       :: tx_flag[XS(l, k)] != turn                       /* stale */
       :: tx_flag[XS(l, k)] == turn && (w != word[l]) -> tx_flag[XS(l, k)]++
       :: tx_flag[XS(l, k)] == turn && w == word[l] ->
          i = t_next[l]; assert(i < NT); t_next[l]++;
          t_state[I(l, 0) + i] = OFFERED; t_slot[I(l, 0) + i] = k; t_tag[I(l, 0) + i] = c; t_gen[I(l, 0) + i] = GEN(w);
          if
          :: cut[l]
          :: !cut[l] -> offer[I(l, 0) + i] = 1
#if AHEAD
          /* accepted ahead, and that has come */
          :: accept[I(l, 0) + i] && ACCEPT_IS_FOR(l, i, GEN(w)) -> TAKE(accept[I(l, 0) + i]); t_state[I(l, 0) + i] = SENT; c = I(l, 0) + i; send_data(c)
#endif
          fi;
          i = 0
       fi; k = 0; turn = 0; c = 0; w = 0 }
  EACH_T(TX_ACCEPT)
  EACH_T(TX_GOT)
#if DEXIT
  EACH_T(TX_UNWANTED)
#endif
  EACH_T(TX_TIMER)
  EACH_T(TX_FREE)
  /* down: the wire is cut, the timer fires though it is good, or the receiver says so */
  :: atomic { UP(word[l]) && (cut[l] || flap > 0) -> if :: cut[l] :: else -> flap-- fi; take_down(l) }
#ifdef MUT_OVER_ONLY_WHEN_UP
  :: atomic { fenced[l * NG + GEN(word[l])] -> fenced[l * NG + GEN(word[l])] = 0; if :: UP(word[l]) -> take_down(l) :: else fi }
#else
  :: atomic { fenced[l * NG + GEN(word[l])] -> fenced[l * NG + GEN(word[l])] = 0; take_down(l) }
#endif
  /* up */
#ifdef MUT_UP_WITHOUT_HELLO
  :: atomic { !UP(word[l]) && !cut[l] -> word[l] = word[l] | 1 }
#else
  :: atomic { !UP(word[l]) && !cut[l] && !hello[l * NG + GEN(word[l])] && !hello_back[l * NG + GEN(word[l])] -> hello[l * NG + GEN(word[l])] = 1 }
  :: atomic { hello_back[l * NG + GEN(word[l])] -> TAKE(hello_back[l * NG + GEN(word[l])]); if :: UP(word[l]) :: else -> word[l] = word[l] | 1 fi }
#endif
  :: atomic { txexit > 0 -> txexit--; tx_dead[l] = 1; close_endpoint(l); break }
  od
}

/* ---- receiver (§7, rx side) --------------------------------------------------------------------------------------------- */

#define MINE(l) (RXN(l) == n)
#define CURRENT(l, t) (t_gen[I(l, t)] == r_gen[l] && !r_gone[l])
#ifdef MUT_FORGET_FINISHED
#define NEW_OFFER(l, t) (r_state[I(l, t)] == NEW || r_state[I(l, t)] == LANDED)
#else
#define NEW_OFFER(l, t) (r_state[I(l, t)] == NEW)
#endif
#ifdef MUT_UP_WITHOUT_HELLO
#define ACCEPTABLE(l, t) true
#else
#define ACCEPTABLE(l, t) CURRENT(l, t)
#endif

/* a destination that died: its offers are answered `unwanted`, its landed slots go back, what has not landed keeps its slot until no
 * write can come into it any more */
#define UNWANTED(l, t) (knows[n] && DEST(t_tag[I(l, t)]) == 0)

#ifdef MUT_UNWANTED_IS_GOT
#define SAY_UNWANTED(l, t) got[I(l, t)] = !cut[l]
#else
#define SAY_UNWANTED(l, t) unwanted[I(l, t)] = !cut[l]
#endif
#define REFUSE(l, t) r_state[I(l, t)] = REFUSED; SAY_UNWANTED(l, t)

#if AHEAD
#define HEARD(l, t) if :: ACCEPTABLE(l, t) && r_next[l] <= (t) -> r_next[l] = (t) + 1 :: else fi
#define AHEAD_OF(l, t) r_ahead[I(l, t)]
#define CLAIM(l, t) if :: r_ahead[I(l, t)] -> r_ahead[I(l, t)] = 0; ahead[l]-- :: else fi
#else
#define HEARD(l, t) skip
#define AHEAD_OF(l, t) false
#define CLAIM(l, t) skip
#endif
#ifdef MUT_KEEP_SLOT_OF_UNWANTED
#define UNWANTED_AHEAD(l, t) CLAIM(l, t); REFUSE(l, t)
#else
#define UNWANTED_AHEAD(l, t) CLAIM(l, t); RELEASE(l, t); REFUSE(l, t)
#endif

#define RX_OFFER(t, l) :: atomic { MINE(l) && offer[I(l, t)] -> TAKE(offer[I(l, t)]); HEARD(l, t); \
    if \
    :: ACCEPTABLE(l, t) && AHEAD_OF(l, t) && UNWANTED(l, t) -> UNWANTED_AHEAD(l, t) \
    :: ACCEPTABLE(l, t) && NEW_OFFER(l, t) && UNWANTED(l, t) -> REFUSE(l, t) \
    :: ACCEPTABLE(l, t) && r_state[I(l, t)] == REFUSED -> SAY_UNWANTED(l, t) \
    :: ACCEPTABLE(l, t) && !NEW_OFFER(l, t) && r_state[I(l, t)] == LANDED -> got[I(l, t)] = !cut[l] \
    :: ACCEPTABLE(l, t) && NEW_OFFER(l, t) && !UNWANTED(l, t) -> r_state[I(l, t)] = WAITING \
    :: ACCEPTABLE(l, t) && (r_state[I(l, t)] == HELD || r_state[I(l, t)] == WRITING) && !(AHEAD_OF(l, t) && UNWANTED(l, t)) -> \
       CLAIM(l, t); accept[I(l, t)] = 1; SAY_GENERATION(l, t) \
    :: else \
    fi }
/* a waiting transfer gets a free slot */
#define RX_GIVE(t, l, k) :: atomic { MINE(l) && r_state[I(l, t)] == WAITING && FREE_SLOT(rx_flag[RS(n, k)]) -> \
    rx_flag[RS(n, k)] = (rx_flag[RS(n, k)] + 1) | 1; r_state[I(l, t)] = HELD; \
    acc_slot[I(l, t)] = k; acc_turn[I(l, t)] = rx_flag[RS(n, k)]; accept[I(l, t)] = !cut[l]; SAY_GENERATION(l, t) }
#ifdef MUT_ALL_AHEAD
#define AHEAD_AT(l) ahead[l]
#elif NL == 2 && NN == 1
#define AHEAD_AT(l) (ahead[0] + ahead[1])
#else
#define AHEAD_AT(l) ahead[l]
#endif
/* the next transfer of a sender that has sent something gets one before it is offered */
#define RX_AHEAD(t, l, k) :: atomic { MINE(l) && r_next[l] == (t) && (t) != 0 && AHEAD_AT(l) < AHEAD && !r_gone[l] && r_state[I(l, t)] == NEW && FREE_SLOT(rx_flag[RS(n, k)]) -> \
    rx_flag[RS(n, k)] = (rx_flag[RS(n, k)] + 1) | 1; r_state[I(l, t)] = HELD; r_ahead[I(l, t)] = 1; ahead[l]++; r_next[l]++; \
    acc_slot[I(l, t)] = k; acc_turn[I(l, t)] = rx_flag[RS(n, k)]; accept[I(l, t)] = !cut[l]; SAY_GENERATION(l, t) }
#if NR == 1
#define RX_GIVE_ANY(t, l) RX_GIVE(t, l, 0)
#define RX_AHEAD_ANY(t, l) RX_AHEAD(t, l, 0)
#else
#define RX_GIVE_ANY(t, l) RX_GIVE(t, l, 0) RX_GIVE(t, l, 1)
#define RX_AHEAD_ANY(t, l) RX_AHEAD(t, l, 0) RX_AHEAD(t, l, 1)
#endif

/* data's header: only a transfer that holds its slot, and into which nothing is being written, takes the bytes */
#if defined(MUT_SECOND_WRITE)
#define WANTS_DATA(l, t) (r_state[I(l, t)] == HELD || r_state[I(l, t)] == WRITING)
#elif defined(MUT_NO_TRANSFER_TAG)
#define WANTS_DATA(l, t) (r_state[I(l, t)] != NEW && r_state[I(l, t)] != WAITING)
#else
#define WANTS_DATA(l, t) (r_state[I(l, t)] == HELD)
#endif
#define RX_DATA(t, l, j) :: atomic { MINE(l) && (data[X(l, t, j)] == FLYING || data[X(l, t, j)] == LATE) -> HEARD(l, t); \
    if \
    :: WANTS_DATA(l, t) && AHEAD_OF(l, t) && UNWANTED(l, t) -> UNWANTED_AHEAD(l, t); data[X(l, t, j)] = ABSENT; wire[X(l, t, j)] = 0 \
    :: WANTS_DATA(l, t) && !(AHEAD_OF(l, t) && UNWANTED(l, t)) -> CLAIM(l, t); data[X(l, t, j)] = data[X(l, t, j)] + 2; rx_bytes[RS(n, acc_slot[I(l, t)])] = JUNK; \
       if :: r_state[I(l, t)] == HELD -> r_state[I(l, t)] = WRITING :: else fi \
    :: !(WANTS_DATA(l, t)) -> data[X(l, t, j)] = ABSENT; wire[X(l, t, j)] = 0; \
       if :: r_state[I(l, t)] == LANDED && CURRENT(l, t) && !cut[l] -> got[I(l, t)] = 1 \
          :: r_state[I(l, t)] == REFUSED && CURRENT(l, t) -> SAY_UNWANTED(l, t) \
          :: else fi \
    fi }
#ifdef MUT_ANNOUNCE_TO_DEAD
#define DEAD_LANDS(l, t) landed[n * ND]!acc_slot[I(l, t)], acc_turn[I(l, t)], t_tag[I(l, t)];
#else
#define DEAD_LANDS(l, t) RELEASE(l, t);
#endif
/* like NodeMemory::release: only the turn that it was taken for */
#define RELEASE(l, t) rx_flag[RS(n, acc_slot[I(l, t)])] = (rx_flag[RS(n, acc_slot[I(l, t)])] == acc_turn[I(l, t)] -> \
    acc_turn[I(l, t)] + 1 : rx_flag[RS(n, acc_slot[I(l, t)])])
#define ANNOUNCE(l, t) landed[n * ND + DEST(t_tag[I(l, t)])]!acc_slot[I(l, t)], acc_turn[I(l, t)], t_tag[I(l, t)]; r_state[I(l, t)] = LANDED
#ifdef MUT_GOT_BEFORE_ANNOUNCED
#define LANDS(l, t) r_state[I(l, t)] = BEHIND
#define RX_ANNOUNCE(t, l) :: atomic { MINE(l) && r_state[I(l, t)] == BEHIND -> ANNOUNCE(l, t) }
#else
#define LANDS(l, t) ANNOUNCE(l, t)
#endif
/* data's last byte */
#define RX_LAST(t, l, j) :: atomic { MINE(l) && (data[X(l, t, j)] == MOVING || data[X(l, t, j)] == MOVING_LATE) -> \
    if :: data[X(l, t, j)] == MOVING -> rx_bytes[RS(n, acc_slot[I(l, t)])] = tx_bytes[XS(l, t_slot[I(l, t)])] \
       :: else -> rx_bytes[RS(n, acc_slot[I(l, t)])] = wire[X(l, t, j)] fi; \
    data[X(l, t, j)] = ABSENT; wire[X(l, t, j)] = 0; \
    if \
    :: r_state[I(l, t)] == WRITING && UNWANTED(l, t) -> DEAD_LANDS(l, t) REFUSE(l, t) \
    :: r_state[I(l, t)] == WRITING && !UNWANTED(l, t) -> LANDS(l, t); has_landed[t_tag[I(l, t)]] = 1; got[I(l, t)] = !cut[l] \
    :: r_state[I(l, t)] == FENCED -> RELEASE(l, t); r_state[I(l, t)] = ENDED \
    :: else \
    fi }
/* the write breaks off: its sender's endpoint is gone */
#define RX_ABORT(t, l, j) :: atomic { MINE(l) && data[X(l, t, j)] == MOVING_LATE -> data[X(l, t, j)] = ABSENT; wire[X(l, t, j)] = 0; \
    if \
    :: r_state[I(l, t)] == WRITING -> r_state[I(l, t)] = HELD \
    :: r_state[I(l, t)] == FENCED -> RELEASE(l, t); r_state[I(l, t)] = ENDED \
    :: else \
    fi }

inline fence(l) {
#if AHEAD
  ahead[l] = 0; r_next[l] = 0;
#endif
  i = 0;
  do
  :: i < NT ->
     if
     :: r_state[I(l, 0) + i] == WAITING -> r_state[I(l, 0) + i] = ENDED
#if AHEAD && !defined(MUT_FENCE_KEEPS_AHEAD)
     /* a number that was not heard of is the sender's to use in its next generation */
     :: r_ahead[I(l, 0) + i] -> r_ahead[I(l, 0) + i] = 0; rx_flag[RS(n, acc_slot[I(l, 0) + i])]++;
        r_state[I(l, 0) + i] = (t_gen[I(l, 0) + i] == r_gen[l] -> ENDED : NEW)
#endif
     :: !AHEAD_OF(l, i) && r_state[I(l, 0) + i] == HELD -> r_state[I(l, 0) + i] = ENDED; rx_flag[RS(n, acc_slot[I(l, 0) + i])]++
#ifdef MUT_REUSE_BEFORE_FENCE
     :: r_state[I(l, 0) + i] == WRITING -> r_state[I(l, 0) + i] = ENDED; rx_flag[RS(n, acc_slot[I(l, 0) + i])]++
#else
     :: r_state[I(l, 0) + i] == WRITING -> r_state[I(l, 0) + i] = FENCED
#endif
#ifdef MUT_FENCE_TAKES_LANDED
     :: r_state[I(l, 0) + i] == LANDED && rx_flag[RS(n, acc_slot[I(l, 0) + i])] == acc_turn[I(l, 0) + i] ->
        r_state[I(l, 0) + i] = ENDED; rx_flag[RS(n, acc_slot[I(l, 0) + i])]++
#endif
     :: else
     fi; i++
  :: else -> break
  od; i = 0
}

#ifdef MUT_TAKE_BACK_UNLANDED
#define TAKE_BACK(l, t) (r_state[I(l, t)] == LANDED || r_state[I(l, t)] == HELD || r_state[I(l, t)] == WRITING)
#else
#define TAKE_BACK(l, t) (r_state[I(l, t)] == LANDED)
#endif
inline reader_died(l) {
  i = 0;
  do
  :: i < NT ->
     if
     :: t_gen[I(l, 0) + i] != 0 && DEST(t_tag[I(l, 0) + i]) == 0 && r_state[I(l, 0) + i] == WAITING ->
        REFUSE(l, i)
     :: t_gen[I(l, 0) + i] != 0 && DEST(t_tag[I(l, 0) + i]) == 0 && TAKE_BACK(l, i) -> RELEASE(l, i)
     :: else
     fi; i++
  :: else -> break
  od; i = 0
}
#if NL == 1
#define READERS_DIED reader_died(0)
#else
#define READERS_DIED if :: RXN(0) == n -> reader_died(0) :: else fi; if :: RXN(1) == n -> reader_died(1) :: else fi
#endif

#define RX_HELLO(l, g) :: atomic { MINE(l) && hello[(l) * NG + (g)] -> TAKE(hello[(l) * NG + (g)]); \
    if \
    :: g > r_gen[l] -> fence(l); r_gen[l] = g; r_gone[l] = 0; hello_back[(l) * NG + (g)] = !cut[l] \
    :: g == r_gen[l] && !r_gone[l] -> hello_back[(l) * NG + (g)] = !cut[l] \
    :: g == r_gen[l] && r_gone[l] -> fenced[(l) * NG + (g)] = !cut[l] \
    :: else \
    fi }
#if NG == 2
#define RX_HELLOS(l)
#elif NG == 3
#define RX_HELLOS(l) RX_HELLO(l, 2)
#else
#define RX_HELLOS(l) RX_HELLO(l, 2) RX_HELLO(l, 3)
#endif
#if AHEAD
/* slots that are accepted ahead are for this link alone, so nobody waits for them; with the sender's process they are free */
#define IN_USE(l, t) (r_state[I(l, t)] == WAITING || r_state[I(l, t)] == WRITING || \
                      (r_state[I(l, t)] == HELD && (!r_ahead[I(l, t)] || tx_dead[l])))
#if NT == 2
#define HOLDS(l) (IN_USE(l, 0) || IN_USE(l, 1))
#elif NT == 3
#define HOLDS(l) (IN_USE(l, 0) || IN_USE(l, 1) || IN_USE(l, 2))
#else
#define HOLDS(l) (IN_USE(l, 0) || IN_USE(l, 1) || IN_USE(l, 2) || IN_USE(l, 3))
#endif
#else
#define HOLDS(l) true
#endif
/* the receiver gives up on a generation: wire cut, sender gone, or a time-out that was wrong */
#ifdef MUT_NO_RECEIVER_FENCE
#define RX_GIVE_UP(l)
#else
#define RX_GIVE_UP(l) :: atomic { MINE(l) && !r_gone[l] && HOLDS(l) && (cut[l] || tx_dead[l] || rxflap > 0) -> \
    if :: cut[l] || tx_dead[l] :: else -> rxflap-- fi; fence(l); r_gone[l] = 1; fenced[(l) * NG + r_gen[l]] = !cut[l] }
#endif

proctype Rx(byte n)
{ byte i;
end:
  do
  EACH_LT(RX_OFFER)
  EACH_LT(RX_GIVE_ANY)
#if AHEAD
  EACH_LT(RX_AHEAD_ANY)
#endif
  EACH_LTJ(RX_DATA)
  EACH_LTJ(RX_LAST)
#ifdef MUT_GOT_BEFORE_ANNOUNCED
  EACH_LT(RX_ANNOUNCE)
#endif
  EACH_LTJ(RX_ABORT)
  EACH_L(RX_HELLOS)
  EACH_L(RX_GIVE_UP)
#if DEXIT
  :: atomic { d_dead[0] && !knows[n] -> knows[n] = 1; READERS_DIED }
#endif
  :: atomic { rxexit > 0 -> rxexit--; rx_dead[n] = 1; i = 0;
       do :: i < NL -> if :: RXN(i) == n -> cut[i] = 1 :: else fi; i++ :: else -> break od; i = 0; break }
  od
}

/* ---- destination (§5) --------------------------------------------------------------------------------------------------- */

#ifdef MUT_COUNT_TWICE
#define AGAIN marks[d]++
#else
#define AGAIN skip
#endif

#define PULL(n) :: atomic { landed[(n) * ND + d]?k, turn, c } \
    if \
    :: atomic { rx_flag[RS(n, k)] != turn -> k = 0; turn = 0; c = 0 } \
    :: atomic { rx_flag[RS(n, k)] == turn && bitmap[c] -> AGAIN; rx_flag[RS(n, k)]++; k = 0; turn = 0; c = 0 } \
    :: atomic { rx_flag[RS(n, k)] == turn && !bitmap[c] -> FREE_FIRST(n) } \
       atomic { assert(!received_all[d]); assert(rx_bytes[RS(n, k)] == TAG(c)); user[c] = rx_bytes[RS(n, k)] } \
       atomic { bitmap[c] = 1; marks[d]++; FREE_LAST(n) k = 0; turn = 0; c = 0 } \
    fi
#ifdef MUT_FREE_BEFORE_COPY
#define FREE_FIRST(n) rx_flag[RS(n, k)] = turn + 1;
#define FREE_LAST(n)
#else
#define FREE_FIRST(n)
#define FREE_LAST(n) rx_flag[RS(n, k)] = turn + 1;
#endif
#define EACH_N(F) F(0)
#if NN == 2
#undef EACH_N
#define EACH_N(F) F(0) F(1)
#endif

#define CHECK_MINE(c) assert(DEST(c) != d || user[c] == TAG(c));

proctype D(byte d)
{ byte k, turn, c;
end:
  do
  EACH_N(PULL)
  :: atomic { !received_all[d] && marks[d] >= NC / ND -> EACH_C(CHECK_MINE) received_all[d] = 1 }
#if DEXIT
  :: atomic { d == 0 && dexit > 0 -> dexit--; d_dead[0] = 1; break }
#endif
  od
}

/* ---- faults ------------------------------------------------------------------------------------------------------------- */

#define LOSE_T(t, l) \
  :: atomic { loss > 0 && offer[I(l, t)] -> loss--; offer[I(l, t)] = 0; need[I(l, t)] = 1 } \
  :: atomic { loss > 0 && accept[I(l, t)] -> loss--; accept[I(l, t)] = 0; need[I(l, t)] = 1 } \
  :: atomic { loss > 0 && got[I(l, t)] -> loss--; got[I(l, t)] = 0; need[I(l, t)] = 1 } \
  :: atomic { loss > 0 && unwanted[I(l, t)] -> loss--; unwanted[I(l, t)] = 0; need[I(l, t)] = 1 } \
  :: atomic { loss > 0 && data[X(l, t, 0)] == FLYING -> loss--; data[X(l, t, 0)] = ABSENT; need[I(l, t)] = 1 } \
  :: atomic { data[X(l, t, 0)] == LATE -> data[X(l, t, 0)] = ABSENT; wire[X(l, t, 0)] = 0 } \
  :: atomic { data[X(l, t, 1)] == LATE -> data[X(l, t, 1)] = ABSENT; wire[X(l, t, 1)] = 0 }
#define LOSE_G(l, g) \
  :: atomic { loss > 0 && hello[(l) * NG + (g)] -> loss--; hello[(l) * NG + (g)] = 0 } \
  :: atomic { loss > 0 && hello_back[(l) * NG + (g)] -> loss--; hello_back[(l) * NG + (g)] = 0 }
#if NG == 2
#define LOSE_GS(l)
#elif NG == 3
#define LOSE_GS(l) LOSE_G(l, 2)
#else
#define LOSE_GS(l) LOSE_G(l, 2) LOSE_G(l, 3)
#endif

/* A wire breaks; what was on it is lost, or still arrives. */
#define CUT_L(l) :: atomic { cuts > 0 && !cut[l] -> cuts--; cut[l] = 1; \
    if :: skip :: i = 0; do :: i < NT -> offer[I(l, 0) + i] = 0; accept[I(l, 0) + i] = 0; got[I(l, 0) + i] = 0; unwanted[I(l, 0) + i] = 0; i++ :: else -> break od; i = 0 fi }

proctype Faults()
{ byte i;
end:
  do
  EACH_LT(LOSE_T)
  EACH_L(LOSE_GS)
  EACH_L(CUT_L)
  /* no more faults: a state that only a fault would move on is a hang */
  :: atomic { loss + dup + resend + flap + cuts + txexit + rxexit + rxflap + dexit > 0 ->
       loss = 0; dup = 0; resend = 0; flap = 0; cuts = 0; txexit = 0; rxexit = 0; rxflap = 0; dexit = 0 }
  od
}

/* ---- when nothing more can happen ---------------------------------------------------------------------------------------- */

proctype Monitor()
{ byte i;
#if AHEAD
  short held;
#endif
  atomic { timeout ->
    assert(sent_all);
    i = 0; do :: i < ND -> assert(received_all[i] || d_dead[i]); i++ :: else -> break od;
    i = 0; do :: i < NO * NX -> assert(tx_dead[i / NX] || !(tx_flag[i] & 1)); i++ :: else -> break od;
#if AHEAD
    /* what is accepted ahead waits for a sender that has no more to send */
    held = 0;
    i = 0; do :: i < NN * NR -> if :: !rx_dead[i / NR] && (rx_flag[i] & 1) -> held++ :: else fi; i++ :: else -> break od;
    i = 0; do :: i < NL -> if :: !rx_dead[RXN(i)] && !tx_dead[i] -> held = held - ahead[i] :: else fi; i++ :: else -> break od;
    assert(held == 0)
#else
    i = 0; do :: i < NN * NR -> assert(rx_dead[i / NR] || !(rx_flag[i] & 1)); i++ :: else -> break od
#endif
  }
}

init {
  atomic {
    byte i;
    i = 0;
    do :: i < NL -> word[i] = 3; r_gen[i] = 1; run Tx(i); i++ :: else -> break od;
    i = 0;
    do :: i < NN -> run Rx(i); i++ :: else -> break od;
    i = 0;
    do :: i < ND -> run D(i); i++ :: else -> break od;
    i = 0;
    run Faults(); run Monitor()
  }
}
