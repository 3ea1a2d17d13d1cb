/* A destination that dies when its operation has ended: the will of docs/protocol.md §12.
 *
 * Destination D receives message m of source S, which is on another node; D's program may post a second operation, which never ends.
 * Frames of D come in order, and its death may cut them off anywhere. D's mate M sees the death, reads D's will (operations posted and
 * not ended; whether one has failed) from the memory that they shared, and tells S, which may hear that before frames of D that were on
 * their way. FAIL: m's operation may fail at D for a reason of its own.
 *
 * Checked: S's send never ends well without its bytes at D; if D's program has been told that all it had posted has ended well, S's send
 * ends well; no send waits for ever.
 */
#ifndef FAIL
#define FAIL 1
#endif
#define GRANT  1
#define ACK    2
#define CANCEL 3
chan to_s = [4] of { byte };
bit  cut;                       /* what D sent and S has not read is lost */

/* D's will, in its shared memory */
byte unended;
bit  failed;

/* D: its program and its engine */
bit  posted, posted_more, granted, got, failing, over, told, told_failure, d_dead;
bit  data;                      /* m's bytes have come to D's node */
byte die = 1, fail = FAIL, more = 1;

#define LIVES !d_dead
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

active proctype D()
{
end:
  do
  :: atomic { LIVES && !posted -> posted = 1; unended++ }
  :: atomic { LIVES && posted && more > 0 -> more = 0; posted_more = 1; unended++ }
  :: atomic { LIVES && more > 0 -> more = 0 }
  :: atomic { LIVES && posted && !granted -> granted = 1; to_s!GRANT }
  :: atomic { LIVES && granted && data && !got && !failing -> got = 1; to_s!ACK }
  :: atomic { LIVES && got && !over && BEFORE_OVER -> over = 1; unended-- }
  :: atomic { LIVES && got && !told && BEFORE_TOLD -> told = 1 }
  :: atomic { LIVES && fail > 0 && granted && !got && !failing -> fail = 0; failing = 1; to_s!CANCEL }
  :: atomic { LIVES && failing && !failed && NOTES_FAILURE -> failed = 1 }
  :: atomic { LIVES && failing && !over && COUNTS_FAILURE -> over = 1; unended-- }
  :: atomic { LIVES && failing && over && failed && !told_failure -> told_failure = 1 }
  :: atomic { die > 0 -> die = 0; d_dead = 1 }
  :: atomic { die > 0 -> die = 0 }
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
#define WAITING 0
#define ENDED   1
#define FAILED  2
byte send_state;
bit  granted_s;
#ifdef MUT_DEATH_IS_FAILURE
#define ARRIVED false
#else
#ifdef MUT_WILL_WITHOUT_GRANT
#define ARRIVED ended_well
#else
#define ARRIVED (ended_well && granted_s)
#endif
#endif
active proctype S()
{ byte kind;
end:
  do
  :: atomic { !cut && nempty(to_s) -> to_s?kind;
       if
       :: kind == GRANT -> granted_s = 1
       :: kind == ACK && send_state == WAITING -> send_state = ENDED
       :: kind == CANCEL && send_state == WAITING -> send_state = FAILED
       :: else
       fi; kind = 0; assert(send_state != ENDED || got) }
  :: atomic { granted_s && send_state == WAITING && !data -> data = 1 }
  :: atomic { tell && send_state == WAITING ->
       if
       :: ARRIVED -> send_state = ENDED
       :: else -> send_state = FAILED
       fi; assert(send_state != ENDED || got) }
  :: atomic { d_dead && !cut -> cut = 1 }
  od
}

active proctype Monitor()
{
  atomic { timeout ->
    assert(send_state != WAITING);
    assert(!told || posted_more || send_state == ENDED) }
}
