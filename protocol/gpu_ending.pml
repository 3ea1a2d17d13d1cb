/* How kernels end whose communicator has ended (docs/cuda.md, Ending).
 *
 * Two ranks exchange a message both ways, each with a kernel that may begin at any time, or never: its launch is queued behind other work.
 * A kernel grants what it receives when it begins, and writes what it sends once that is granted; a rank's program may abort at any moment,
 * and its mate's host hears of it later. Copies that tell ports to halt may come late. The half second in which a kernel that was writing
 * ends what it had been granted is the time in which it is not running with a port that was open when it began.
 *
 * Checked: nobody writes into the buffer of a rank whose kernel has left; a kernel that has begun leaves in the end.
 */
#define QUEUED  0
#define RUNS    1
#define RESTS   2
#define LEFT    3
#define STOP    1
#define LEAVE   2
#define PEER    (1 - r)

byte kernel[2];
bit  granted[2];    /* by that rank, for what it receives */
bit  open[2];       /* what its kernel has read of its port when it began */
bit  writing[2], written[2];
bit  failed[2], told_rest[2], halting[2], halted[2], rests[2];
byte stop[2];
byte aborts = 1;

#define HAS_COME written[PEER]
#define IN_BUFFER assert(kernel[PEER] != LEFT)

#ifdef MUT_LEAVES_AT_STOP
#define MAY_LEAVE true
#else
#define MAY_LEAVE (HAS_COME || stop[r] == LEAVE)
#endif
#ifdef MUT_PORT_IS_NOT_READ
#define PORT 1
#else
#define PORT !halted[r]
#endif
#ifdef MUT_RESTS_BEFORE_HALTED
#define IS_HALTED halting[r]
#else
#define IS_HALTED halted[r]
#endif
#ifdef MUT_RESTS_WHILE_WRITING
#define WRITES_NO_MORE true
#elif defined(MUT_RESTS_WHEN_LEFT)
#define WRITES_NO_MORE (kernel[r] == LEFT)
#else
#define WRITES_NO_MORE (rests[r] || kernel[r] == LEFT || kernel[r] == QUEUED || (kernel[r] == RUNS && !open[r]))
#endif

proctype Kernel(bit r)
{
end:
  do
  :: atomic { kernel[r] == QUEUED -> kernel[r] = RUNS; open[r] = PORT; granted[r] = 1 }
  :: atomic { kernel[r] == RUNS && open[r] && granted[PEER] && !writing[r] && !written[r] -> writing[r] = 1; IN_BUFFER }
  :: atomic { writing[r] -> IN_BUFFER; writing[r] = 0; written[r] = 1 }
  :: atomic { kernel[r] == RUNS && written[r] && HAS_COME -> kernel[r] = LEFT; break }
  /* a block looks at the host's word when it has nothing else to do; all have left then but the last */
  :: atomic { kernel[r] == RUNS && stop[r] != 0 && !writing[r] -> kernel[r] = RESTS; rests[r] = 1 }
  :: atomic { kernel[r] == RESTS && MAY_LEAVE -> kernel[r] = LEFT; break }
  od
}

proctype Host(bit r)
{
end:
  do
  :: atomic { aborts > 0 && !failed[r] -> aborts--; failed[r] = 1; stop[r] = STOP }
  :: atomic { failed[PEER] && !failed[r] -> failed[r] = 1; stop[r] = STOP }
  :: atomic { failed[r] && !halting[r] -> halting[r] = 1 }
  :: atomic { halting[r] && !halted[r] -> halted[r] = 1 }
  :: atomic { failed[r] && IS_HALTED && WRITES_NO_MORE && !told_rest[r] -> told_rest[r] = 1 }
  :: atomic { failed[r] && told_rest[PEER] && stop[r] == STOP -> stop[r] = LEAVE }
  od
}

init { atomic { run Kernel(0); run Kernel(1); run Host(0); run Host(1) } }

active proctype Monitor()
{ bit r;
  atomic { timeout ->
    do
    :: true -> assert(kernel[r] == LEFT); if :: r == 0 -> r = 1 :: else -> break fi
    od }
}
