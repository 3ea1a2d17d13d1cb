/* A rank that leaves, and ranks that leave together: docs/protocol.md §12, leases.
 *
 * Source s sends NC chunks; relay o owns a NIC, s's own NIC is the other path. Both programs close when they like: s when its send is
 * done, o at any moment. o serves until every other rank has read its lease_end, or is leaving or gone itself, and none of its tx slots
 * is in use; at the latest when the drain time is over (EXPIRE). With STOP, s's process may be stopped for ever (it neither reads nor
 * dies). Rails and destination are one step here (rail.pml has them).
 *
 * Checked: both end; the send completes; a relay that leaves and is not cut short by the drain time costs no chunk a second attempt.
 */
#ifndef NC
#define NC 2
#endif
#ifndef EXPIRE
#define EXPIRE 0
#endif
#ifndef STOP
#define STOP 0
#endif
#define TODO 0
#define OUT  1
#define DONE 2
byte chunk[NC];
bit  by_relay[NC];
byte attempts[NC];
bit  slot;                      /* the tx slot of s at o: in use */
byte slot_chunk;
bit  announced;                 /* forward record: o may send the slot */
bit  confirmed[NC];

bit  o_leaving, o_left;         /* o_left: its process has ended */
bit  s_leaving, s_left;
bit  lease_end_to_s, lease_end_to_o;    /* in the mail ring, unread */
bit  s_knows, o_knows;          /* lease_end was read */
bit  stopped, expired;
byte expire = EXPIRE, stop = STOP;
#if NC == 1
#define EACH(F) F(0)
#define ALL_DONE (chunk[0] == DONE)
#else
#define EACH(F) F(0) F(1)
#define ALL_DONE (chunk[0] == DONE && chunk[1] == DONE)
#endif

#ifdef MUT_NEW_AFTER_LEASE_END
#define MAY_RELAY !o_left
#else
#define MAY_RELAY (!s_knows && !o_left)
#endif
#ifdef MUT_LEFT_NOT_RETIRED
#define RETIRE(c)
#else
#define RETIRE(c) :: atomic { !stopped && chunk[c] == OUT && by_relay[c] && o_left && !confirmed[c] -> chunk[c] = TODO; by_relay[c] = 0 }
#endif
#define RELAY(c) :: atomic { !stopped && chunk[c] == TODO && MAY_RELAY && !slot -> skip } \
    atomic { slot = 1; slot_chunk = c } /* between look and taking, o may have gone on */ \
    atomic { announced = 1; chunk[c] = OUT; by_relay[c] = 1; attempts[c]++ }
#define OWN(c)   :: atomic { !stopped && chunk[c] == TODO -> chunk[c] = OUT; attempts[c]++; confirmed[c] = 1 }
#define CONFIRMED(c) :: atomic { !stopped && chunk[c] == OUT && confirmed[c] -> chunk[c] = DONE }

#ifdef MUT_WAIT_FOR_LEAVERS
#define S_READ(who) !lease_end_to_o
#define O_READ(who) !lease_end_to_s
#else
#define S_READ(who) (!lease_end_to_o || o_leaving || o_left)
#define O_READ(who) (!lease_end_to_s || s_leaving || s_left)
#endif

active proctype S()
{
end:
  do
  EACH(RELAY)
  EACH(OWN)
  EACH(RETIRE)
  EACH(CONFIRMED)
  :: atomic { !stopped && lease_end_to_s -> lease_end_to_s = 0; s_knows = 1 }
  :: atomic { !stopped && ALL_DONE && !s_leaving -> s_leaving = 1; lease_end_to_o = 1 }
  :: atomic { !stopped && s_leaving && S_READ(o) -> s_left = 1; break }
  :: atomic { stop > 0 -> stop--; stopped = 1 }
  :: atomic { stop > 0 -> stop = 0 }
  od
}

#ifdef MUT_NO_DRAIN
#define DRAINED true
#else
#define DRAINED (!slot || s_left)
#endif
#ifdef MUT_NO_LEASE_END
#define LEASE_END
#else
#define LEASE_END lease_end_to_s = 1
#endif
#ifdef MUT_DRAIN_FOR_EVER
#define DRAIN_TIME_OVER false
#else
#define DRAIN_TIME_OVER ((expire > 0 || stopped) && !(O_READ(s) && DRAINED))
#endif

active proctype O()
{
end:
  do
  :: atomic { announced -> announced = 0; confirmed[slot_chunk] = 1; slot = 0; slot_chunk = 0 }
  :: atomic { lease_end_to_o -> lease_end_to_o = 0; o_knows = 1 }
  :: atomic { !o_leaving -> o_leaving = 1; LEASE_END }
  :: atomic { o_leaving && O_READ(s) && DRAINED -> o_left = 1; break }
  :: atomic { expire > 0 -> expire = 0 }
  :: atomic { o_leaving && DRAIN_TIME_OVER -> expired = 1; o_left = 1; break }
  od
}

active proctype Monitor()
{
  atomic { timeout ->
    assert(o_left);
    assert(stopped || (ALL_DONE && s_left));
    assert(expired || (attempts[0] <= 1 && attempts[NC - 1] <= 1)) }
}
