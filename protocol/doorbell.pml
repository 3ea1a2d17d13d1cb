/* Sleeping and waking: docs/protocol.md §3, doorbell; NodeMemory::wake, prepare_sleep.
 *
 * Two writers each publish ITEMS things for a reader (a record in their ring, a freed slot, a changed link word: anything that a role
 * waits for); the reader takes them, and sleeps when it finds none. Stores go through a store buffer of one entry a process and become
 * visible at any later moment, as on x86 and GPUs: without the fences a wake-up is lost. (SPIN's own memory is sequentially consistent.)
 */
#ifndef ITEMS
#define ITEMS 2
#endif
#define NW 2

byte published[NW];             /* as memory has it */
byte taken[NW];
bit  sleeping;                  /* doorbell flag, as memory has it */
byte pipe;                      /* bytes in the reader's pipe */

/* store buffers */
byte buffered[NW];              /* value of published[w] on its way; 0 none */
bit  flag_buffered, flag_value; /* reader's store to `sleeping` */

#ifdef MUT_NO_WRITER_FENCE
#define WRITER_FENCE(w)
#else
#define WRITER_FENCE(w) buffered[w] == 0;
#endif
#ifdef MUT_NO_READER_FENCE
#define READER_FENCE
#else
#define READER_FENCE !flag_buffered;
#endif
#ifdef MUT_LOOK_AT_ONE
#define MORE (published[0] > taken[0])
#else
#define MORE (published[0] > taken[0] || published[1] > taken[1])
#endif

proctype Writer(byte w)
{ byte i;
  do
  :: i < ITEMS -> i++;
     atomic { buffered[w] == 0 -> buffered[w] = i }
     WRITER_FENCE(w)
     if
     :: atomic { sleeping -> sleeping = 0; pipe++ }      /* exchange: one writer rings */
     :: atomic { !sleeping -> skip }
     fi
  :: else -> break
  od
}

proctype Drain()
{
end:
  do
  :: atomic { buffered[0] != 0 -> published[0] = buffered[0]; buffered[0] = 0 }
  :: atomic { buffered[1] != 0 -> published[1] = buffered[1]; buffered[1] = 0 }
  :: atomic { flag_buffered -> flag_buffered = 0; sleeping = flag_value }
  od
}

proctype Reader()
{
end:
  do
  :: atomic { published[0] > taken[0] -> taken[0]++ }
  :: atomic { published[1] > taken[1] -> taken[1]++ }
  :: atomic { !(published[0] > taken[0]) && !(published[1] > taken[1]) && taken[0] + taken[1] < NW * ITEMS ->
       !flag_buffered; flag_buffered = 1; flag_value = 1 }
#ifdef MUT_LOOK_BEFORE_FLAG
     skip;
#else
     READER_FENCE
     if
     :: atomic { MORE -> !flag_buffered; sleeping = 0; flag_value = 0; pipe = 0 }
     :: atomic { !MORE -> skip };
end_asleep:
        atomic { pipe > 0 -> pipe = 0; flag_value = 0 }
     fi
#endif
#ifdef MUT_LOOK_BEFORE_FLAG
     READER_FENCE
end_asleep:
     atomic { pipe > 0 -> pipe = 0; flag_value = 0 }
#endif
  od
}

proctype Monitor()
{
  atomic { timeout -> assert(taken[0] == ITEMS && taken[1] == ITEMS) }
}

init { atomic { run Writer(0); run Writer(1); run Drain(); run Reader(); run Monitor() } }
