/* A GPU's kernels and their rank's engine: docs/cuda.md, "Several nodes". Of the engine only what kernels see: it takes the list of an
 * operation, asks for its copies as places are free, and says that it has ended. Grants, slots and rails are the other models'.
 *
 * OPERATIONS launches of a communicator, one after another, BLOCKS blocks each; a block may begin when others are in the middle. COPIES of
 * each operation, PLACES for them at once. FAIL: the communicator fails, at any moment: the host sends its kernels away, or a kernel gives
 * up by itself and the host hears of it later.
 */
#ifndef OPERATIONS
#define OPERATIONS 2
#endif
#ifndef COPIES
#define COPIES 3
#endif
#ifndef PLACES
#define PLACES 2
#endif
#ifndef FAIL
#define FAIL 0
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif
#define JUNK 99
#define LAST (OPERATIONS * COPIES)

/* device memory */
byte before;                            /* operations that have ended */
byte claimed;                           /* operations that a block has listed, or is listing */
byte taken;                             /* copies */
byte leaving;                           /* blocks of the launch that have left */
bit  quit;                              /* one of them before the operation was over */
/* pinned host memory; the kernel's words, then the engine's */
byte list, begun;                       /* the operation whose messages are listed; how many have been listed */
byte made[PLACES];
bit  error;                             /* a kernel gave up by itself */
bit  gone;                              /* all blocks of a kernel that gave up, or was sent away */
byte number[PLACES], job[PLACES];       /* of the copy at a place: its number, and its operation */
byte ended;
bit  stop;                              /* the host's */

byte launched;
byte copied[LAST + 1];                  /* how often each copy was made */
byte asked;
bit  gave_up;
bit  reused;                            /* slots of copies that were not made have something else */

proctype Host()
{
  do
  :: atomic { launched < OPERATIONS && (launched == 0 || leaving == BLOCKS) -> leaving = 0; launched++ }
  :: atomic { launched == OPERATIONS -> break }
#if FAIL
  :: atomic { !stop -> stop = 1 }
#endif
  od;
#if FAIL
  if
  :: atomic { !stop -> stop = 1 }
  :: atomic { leaving == BLOCKS && !error -> skip }
  fi
#endif
}

inline List(n)
{
#ifdef MUT_BEGUN_BEFORE_LIST
  begun = n; list = JUNK; list = n
#else
  list = JUNK; list = n; begun = n
#endif
}

proctype Block()
{ byte op, n, c;
  bit leave, mine;
  do
  :: atomic { op < launched -> op++; n = before + 1; leave = 0; mine = 0; c = 0 }
#ifdef MUT_NO_LOOK_AT_ERROR
     leave = stop;
#elif !defined(MUT_NO_LOOK_AT_BEGIN)
     leave = stop || error;
#endif
     if
     :: leave
     :: else ->
#ifdef MUT_ALL_LIST
        mine = 1;
#else
        atomic { mine = (claimed < n); claimed = n }
#endif
        if
        :: mine -> List(n)
        :: else
        fi
     fi;
     do
     :: atomic { leave -> break }
     :: atomic { !leave && (stop || error) -> leave = 1 }
#if FAIL
     :: atomic { !leave && !error -> error = 1; leave = 1 }
#endif
     :: atomic { !leave && ended >= n -> break }
     :: atomic { !leave && number[(taken + 1) % PLACES] == taken + 1 -> taken++; c = taken }
        assert(job[c % PLACES] == op);
        copied[c]++;
        assert(copied[c] == 1 && !reused);
        made[c % PLACES] = c
     od;
     atomic {
       leaving++; quit = quit || leave;
       if
       :: leaving == BLOCKS && quit -> quit = 0; gone = 1
       :: leaving == BLOCKS && !quit -> before = n
       :: else
       fi }
  :: atomic { op == OPERATIONS -> break }
  od
}

#ifdef MUT_REUSE_PLACE
#define PLACE_IS_FREE true
#else
#define PLACE_IS_FREE (asked < PLACES || made[(asked + 1) % PLACES] + PLACES == asked + 1)
#endif
#ifdef MUT_END_BEFORE_MADE
#define ALL_MADE true
#else
#define ALL_MADE (made[asked % PLACES] == asked && (asked < 2 || PLACES < 2 || made[(asked - 1) % PLACES] == asked - 1))
#endif

proctype Engine()
{ byte posted, open;
end:
  do
  :: atomic { stop && !gave_up -> gave_up = 1; open = 0 }
#ifdef MUT_GIVE_UP_AT_ONCE
  :: atomic { gave_up && !reused -> reused = 1 }
#else
  :: atomic { gave_up && gone && !reused -> reused = 1 }
#endif
  :: atomic { !gave_up && posted == ended && begun > posted -> posted++; open = COPIES }
     assert(list == posted)
  :: atomic { !gave_up && open > 0 && PLACE_IS_FREE -> asked++; open-- }
#ifdef MUT_NUMBER_BEFORE_JOB
     number[asked % PLACES] = asked; job[asked % PLACES] = posted
#else
     job[asked % PLACES] = posted; number[asked % PLACES] = asked
#endif
  :: atomic { !gave_up && posted > ended && open == 0 && ALL_MADE -> ended = posted }
  od
}

proctype Monitor()
{ byte i;
  atomic { timeout ->
    assert(launched == OPERATIONS && leaving == BLOCKS);
    i = 1;
    do :: i <= LAST -> assert(copied[i] == 1 || (stop && (i > asked || reused))); i++ :: else -> break od }
}

init { atomic { byte i; run Host(); i = 0; do :: i < BLOCKS -> run Block(); i++ :: else -> break od; run Engine(); run Monitor() } }
