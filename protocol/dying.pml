/* Ends of ranks whose sends and receives are over, or are not: the will, and what `lease_end` says (docs/protocol.md §12).
 *
 * Destination D receives message m of source S, which is on another node; D's program may post a second operation, which never ends. m is
 * one chunk; R, a mate of D's, lands it and says so, and the link may take that along, so that S sends again. D may leave when all it had
 * posted has ended. Frames of D come in order, and its death may cut them off anywhere. D's mate M sees the death, reads D's will
 * (operations posted and not ended; whether one has failed) from the memory that they shared, and tells S, which may hear that before
 * frames of D that were on their way. FAIL: m's operation may fail at D for a reason of its own. S may leave, too, when its send has ended.
 *
 * Checked: S's send never ends well without its bytes in D's node; if D's program has been told that all it had posted has ended well,
 * S's send ends well; no send waits for ever; D's receive does not fail because S is gone whose send has ended.
 */
#ifndef FAIL
#define FAIL 1
#endif
#define GRANT     1
#define CANCEL    2
#define LEASE_END 3
chan to_s = [4] of { byte };
bit  cut;                       /* what D sent and S has not read is lost */

/* D's will, in its shared memory */
byte unended;
bit  failed;

/* D: its program and its engine */
bit  posted, posted_more, granted, took, failing, cancelled, over, told, told_failure, d_dead, d_left;
byte die = 1, fail = FAIL, more = 1;

/* m: its chunk under way; in D's ring; `got` under way */
bit  flying, landed, got;
byte lose = 1;

#define WAITING 0
#define ENDED   1
#define FAILED  2
byte send_state;
bit  granted_s, out, s_left;

#define LIVES (!d_dead && !d_left)
#ifdef MUT_WILL_AFTER_PROGRAM
#define BEFORE_TOLD true
#define BEFORE_OVER told
#else
#define BEFORE_TOLD over
#define BEFORE_OVER true
#endif
#ifdef MUT_FAILURE_AFTER_COUNT
#define NOTES_FAILURE over
#define COUNTS_FAILURE true
#else
#define NOTES_FAILURE true
#define COUNTS_FAILURE failed
#endif
#ifdef MUT_LEAVES_BEFORE_CANCELLING
#define CANCELS_FIRST true
#define MAY_CANCEL !d_dead
#else
#define CANCELS_FIRST (!failing || cancelled)
#define MAY_CANCEL LIVES
#endif
#ifdef MUT_FAILS_WITH_LANDED
#define IS_HERE took
#else
#define IS_HERE (took || landed)        /* it looks into its ring first */
#endif

active proctype D()
{ bit heard;
end:
  do
  :: atomic { LIVES && !posted -> posted = 1; unended++ }
  :: atomic { LIVES && posted && more > 0 -> more = 0; posted_more = 1; unended++ }
  :: atomic { LIVES && more > 0 -> more = 0 }
  :: atomic { LIVES && posted && !granted -> granted = 1; to_s!GRANT }
  :: atomic { LIVES && granted && landed && !took && !failing -> took = 1 }
  :: atomic { LIVES && took && !over && BEFORE_OVER -> over = 1; unended-- }
  :: atomic { LIVES && took && !told && BEFORE_TOLD -> told = 1 }
  :: atomic { LIVES && fail > 0 && granted && !took && !failing -> fail = 0; failing = 1 }
  :: atomic { MAY_CANCEL && failing && !cancelled -> cancelled = 1; to_s!CANCEL }
  :: atomic { LIVES && failing && !failed && NOTES_FAILURE -> failed = 1 }
  :: atomic { LIVES && failing && !over && COUNTS_FAILURE -> over = 1; unended-- }
  :: atomic { LIVES && failing && over && failed && !told_failure -> told_failure = 1 }
  :: atomic { LIVES && unended == 0 && (!posted || told || told_failure) && CANCELS_FIRST -> d_left = 1; to_s!LEASE_END }
  /* S is gone */
  :: atomic { LIVES && s_left && granted && !heard -> heard = 1;
       if
       :: IS_HERE || failing
       :: else -> assert(send_state != ENDED); failing = 1
       fi }
  :: atomic { die > 0 -> die = 0; d_dead = 1 }
  :: atomic { die > 0 -> die = 0 }
  od
}

/* R: for a destination that it knows to be gone it lands nothing */
#ifdef MUT_UNWANTED_HAS_LANDED
#define REFUSE got = 1
#else
#define REFUSE skip
#endif
active proctype R()
{ bit knows;
end:
  do
  :: atomic { flying && !knows -> flying = 0; landed = 1; got = 1 }
  :: atomic { flying && knows -> flying = 0; REFUSE }
  :: atomic { !LIVES && !knows -> knows = 1 }
  od
}

/* M: reads the will once D's process has ended */
bit  tell, ended_well;
#ifdef MUT_WILL_WITHOUT_FAILURES
#define WELL (unended == 0)
#else
#define WELL (unended == 0 && !failed)
#endif
active proctype M()
{
end:
  atomic { d_dead -> ended_well = WELL; tell = 1 }
}

/* S */
#ifdef MUT_DEATH_IS_FAILURE
#define ARRIVED false
#else
#ifdef MUT_WILL_WITHOUT_GRANT
#define ARRIVED ended_well
#else
#define ARRIVED (ended_well && granted_s)
#endif
#endif
#if defined(MUT_LEAVING_IS_FAILURE)
#define HAD_ALL false
#elif defined(MUT_LEFT_WITHOUT_GRANT)
#define HAD_ALL true
#else
#define HAD_ALL granted_s
#endif
#define CHECK assert(send_state != ENDED || landed)
active proctype S()
{ byte kind;
end:
  do
  :: atomic { !cut && nempty(to_s) -> to_s?kind;
       if
       :: kind == GRANT -> granted_s = 1
       :: kind == CANCEL && send_state == WAITING -> send_state = FAILED
       :: kind == LEASE_END && send_state == WAITING && HAD_ALL -> send_state = ENDED
       :: kind == LEASE_END && send_state == WAITING && !HAD_ALL -> send_state = FAILED
       :: else
       fi; kind = 0; CHECK }
  :: atomic { granted_s && send_state == WAITING && !out -> out = 1; flying = 1 }
  :: atomic { got -> got = 0; if :: send_state == WAITING -> send_state = ENDED :: else fi; CHECK }
  /* the link dies with what it carries, or with the answer to it: another way is taken */
  :: atomic { lose > 0 && out && send_state == WAITING -> lose--; out = 0; got = 0; if :: true :: flying = 0 fi }
  :: atomic { lose > 0 -> lose = 0 }
  :: atomic { tell && send_state == WAITING ->
       if
       :: ARRIVED -> send_state = ENDED
       :: else -> send_state = FAILED
       fi; CHECK }
  :: atomic { send_state == ENDED && !s_left -> s_left = 1 }
  :: atomic { d_dead && !cut -> cut = 1 }
  od
}

active proctype Monitor()
{
  atomic { timeout ->
    assert(send_state != WAITING);
    assert(!told || posted_more || send_state == ENDED) }
}
