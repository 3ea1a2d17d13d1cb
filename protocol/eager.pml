/* Small messages that wait for no grant: docs/protocol.md §6a; leaving of §12.
 *
 * Source S and destination D, with the control channel between them: frames come once and in order (control.pml). S posts its messages
 * one after the other without waiting; D posts ORDER, each receive when the one before has ended, so early messages fill what D keeps.
 * When all its messages are over S leaves. Checked: every message ends on both sides, and with the right bytes; D never keeps more than
 * CREDITS; a message that S has completed is never refused because S has left; at the end D keeps nothing, and no credit is lost.
 *
 * MISMATCH 1: S holds message 3 for large, D for small. 2: the other way round.
 * FAIL: so many receives of D fail for a reason of their own, at any moment.
 */
#ifndef CREDITS
#define CREDITS 1
#endif
#ifndef MISMATCH
#define MISMATCH 0
#endif
#ifndef FAIL
#define FAIL 0
#endif
#define NM 4                    /* messages 0, 1, 2 are of one communicator, 3 of another one */
byte order[NM] = { 3, 0, 1, 2 };

#define SMALL_S(m) (MISMATCH != 1 || (m) != 3)
#define SMALL_D(m) (MISMATCH != 2 || (m) != 3)
#define AGREE(m)   (MISMATCH == 0 || (m) != 3)
#define TAG(m)     ((m) + 1)

#define IDLE    0
#define WAITING 1               /* posted; S: for a grant; D: for the message */
#define GRANTED 2
#define OVER    3
#define FAILED  4
byte s_state[NM], d_state[NM];
byte s_posted, d_posted;
bit  left, left_seen;

#define EAGER  1
#define ASK    2
#define DATA   3                /* by the ways of a granted message (rail.pml, matching.pml), done when they have landed */
#define CANCEL 4
#define LEAVE  5
#define GRANT  6
#define CREDIT 7
chan to_d = [16] of { byte, byte };      /* more than one run sends */
chan to_s = [16] of { byte, byte };

/* S */
byte credits = CREDITS;
bit  asked_late[NM];
bit  grant_kept[NM];            /* came before the send was posted */
bit  cancelled_s[NM];
/* D */
bit  kept[NM];                  /* came before its receive was posted */
byte keeps;
bit  ask_kept[NM];
bit  cancelled_d[NM];
byte user[NM];
bit  refused[NM];               /* since S has left */
byte fail = FAIL;


#ifdef MUT_WAIT_FOR_CREDIT
#define WITHOUT_CREDIT skip
#else
#define WITHOUT_CREDIT to_d!ASK, m
#endif

/* the grant is there: the sizes agree, or both sides fail */
inline granted(m) {
  if
  :: AGREE(m) -> to_d!DATA, m; s_state[m] = OVER
  :: else -> to_d!CANCEL, m; s_state[m] = FAILED
  fi
}

#define ENDED_S(m) (s_state[m] == OVER || s_state[m] == FAILED)
#ifdef MUT_NO_LATE_ASK
#define ASK_LATE(m)
#else
#define ASK_LATE(m) :: atomic { s_state[m] == WAITING && !SMALL_S(m) && !asked_late[m] -> asked_late[m] = 1; to_d!ASK, m }
#endif
#ifdef MUT_WAIT_FOR_CREDIT
#define CREDIT_COMES(m) :: atomic { s_state[m] == WAITING && SMALL_S(m) && credits > 0 -> credits--; to_d!EAGER, m; s_state[m] = OVER }
#else
#define CREDIT_COMES(m)
#endif
#ifdef MUT_KEEP_LATE_GRANT
#define LATE_GRANT(m) grant_kept[m] = 1
#else
#define LATE_GRANT(m) skip
#endif

active proctype S()
{ byte m;
end:
  do
  :: atomic { s_posted < NM -> m = s_posted; s_posted++;
       if
       :: cancelled_s[m] -> s_state[m] = FAILED
       :: !cancelled_s[m] && SMALL_S(m) && credits > 0 -> credits--; to_d!EAGER, m; s_state[m] = OVER; grant_kept[m] = 0
       :: !cancelled_s[m] && SMALL_S(m) && credits == 0 && grant_kept[m] -> grant_kept[m] = 0; granted(m)
       :: !cancelled_s[m] && SMALL_S(m) && credits == 0 && !grant_kept[m] -> WITHOUT_CREDIT; s_state[m] = WAITING
       :: !cancelled_s[m] && !SMALL_S(m) && grant_kept[m] -> grant_kept[m] = 0; granted(m)
       :: !cancelled_s[m] && !SMALL_S(m) && !grant_kept[m] -> s_state[m] = WAITING
       fi; m = 0 }
  ASK_LATE(0) ASK_LATE(1) ASK_LATE(2) ASK_LATE(3)
  CREDIT_COMES(0) CREDIT_COMES(1) CREDIT_COMES(2) CREDIT_COMES(3)
  :: atomic { to_s?GRANT, m ->
       if
       :: s_state[m] == WAITING -> granted(m)
       :: s_state[m] == IDLE -> grant_kept[m] = 1
       :: s_state[m] != WAITING && s_state[m] != IDLE -> LATE_GRANT(m)
       fi; m = 0 }
  :: atomic { to_s?CANCEL, m ->
       if
       :: s_state[m] == WAITING -> s_state[m] = FAILED
       :: s_state[m] == IDLE -> cancelled_s[m] = 1; grant_kept[m] = 0
       :: s_state[m] != WAITING && s_state[m] != IDLE -> skip
       fi; m = 0 }
  :: atomic { to_s?CREDIT, m -> credits++; assert(credits <= CREDITS); m = 0 }
  :: atomic { !left && s_posted == NM && ENDED_S(0) && ENDED_S(1) && ENDED_S(2) && ENDED_S(3) -> left = 1; to_d!LEAVE, 0 }
  od
}

#define ENDED_D(m) (d_state[m] == OVER || d_state[m] == FAILED)
#ifdef MUT_CREDIT_ON_ARRIVAL
#define CREDIT_AT_ARRIVAL(m) to_s!CREDIT, m
#define CREDIT_WHEN_TAKEN(m) skip
#else
#define CREDIT_AT_ARRIVAL(m) skip
#define CREDIT_WHEN_TAKEN(m) to_s!CREDIT, m
#endif
#ifdef MUT_FORGET_ASK
#define KEEP_ASK(m) skip
#else
#define KEEP_ASK(m) ask_kept[m] = 1
#endif
#ifdef MUT_KEEP_STALE
#define IS_STALE(m) false
#else
#define IS_STALE(m) ENDED_D(m)
#endif
#ifdef MUT_REFUSE_WHAT_IS_HERE
#define GONE(m) left_seen
#else
#define GONE(m) (left_seen && !kept[m])
#endif

/* the whole message is here and its receive is posted */
inline take(m) {
  if
  :: AGREE(m) -> user[m] = TAG(m); d_state[m] = OVER
  :: else -> d_state[m] = FAILED; to_s!CANCEL, m
  fi
}

#define LEFT_BEHIND(m) if :: d_state[m] == WAITING || d_state[m] == GRANTED -> d_state[m] = FAILED; refused[m] = 1 :: else fi
#define FAIL_ANY(m) :: atomic { fail > 0 && (d_state[m] == WAITING || d_state[m] == GRANTED) -> fail--; d_state[m] = FAILED; to_s!CANCEL, m }

active proctype D()
{ byte m;
end:
  do
  :: atomic { d_posted < NM && (d_posted == 0 || ENDED_D(order[d_posted - 1])) -> m = order[d_posted]; d_posted++;
       if
       :: GONE(m) -> d_state[m] = FAILED; refused[m] = 1
       :: !GONE(m) && cancelled_d[m] -> d_state[m] = FAILED
       :: !GONE(m) && !cancelled_d[m] && kept[m] -> kept[m] = 0; keeps--; CREDIT_WHEN_TAKEN(m); take(m)
       :: !GONE(m) && !cancelled_d[m] && !kept[m] && SMALL_D(m) && !ask_kept[m] -> d_state[m] = WAITING
       :: !GONE(m) && !cancelled_d[m] && !kept[m] && (!SMALL_D(m) || ask_kept[m]) -> d_state[m] = GRANTED; to_s!GRANT, m
       fi; ask_kept[m] = 0; m = 0 }
  :: atomic { to_d?EAGER, m -> CREDIT_AT_ARRIVAL(m);
       if
       :: d_state[m] == WAITING || d_state[m] == GRANTED -> CREDIT_WHEN_TAKEN(m); take(m)
       :: IS_STALE(m) -> CREDIT_WHEN_TAKEN(m)
       :: !(d_state[m] == WAITING || d_state[m] == GRANTED) && !IS_STALE(m) -> kept[m] = 1; keeps++; assert(keeps <= CREDITS)
       fi; m = 0 }
  :: atomic { to_d?ASK, m ->
       if
       :: d_state[m] == WAITING -> d_state[m] = GRANTED; to_s!GRANT, m
       :: d_state[m] == IDLE -> KEEP_ASK(m)
       :: d_state[m] != WAITING && d_state[m] != IDLE -> skip
       fi; m = 0 }
  :: atomic { to_d?DATA, m ->
       if :: d_state[m] == GRANTED -> user[m] = TAG(m); d_state[m] = OVER :: else fi; m = 0 }
  :: atomic { to_d?CANCEL, m ->
       if
       :: d_state[m] == WAITING || d_state[m] == GRANTED -> d_state[m] = FAILED
       :: d_state[m] == IDLE -> cancelled_d[m] = 1
       :: else
       fi; m = 0 }
  :: atomic { to_d?LEAVE, m -> left_seen = 1; LEFT_BEHIND(0); LEFT_BEHIND(1); LEFT_BEHIND(2); LEFT_BEHIND(3) }
  FAIL_ANY(0) FAIL_ANY(1) FAIL_ANY(2) FAIL_ANY(3)
  :: atomic { fail > 0 -> fail = 0 }    /* no more faults: a state that only a fault would move on is a hang */
  od
}

active proctype Monitor()
{ byte m;
  atomic { timeout ->
    do
    :: m < NM ->
       assert(ENDED_S(m) && ENDED_D(m));
       assert(d_state[m] != OVER || user[m] == TAG(m));
       assert(!refused[m] || s_state[m] == FAILED);
       assert(FAIL > 0 || !AGREE(m) || (s_state[m] == OVER && d_state[m] == OVER));
       assert(AGREE(m) || d_state[m] == FAILED);
       assert(!grant_kept[m] && !ask_kept[m]);
       m++
    :: else -> break
    od;
    assert(keeps == 0);
    assert(credits == CREDITS) }
}
