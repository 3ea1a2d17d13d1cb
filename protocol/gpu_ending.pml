/* How kernels end whose communicator has ended (docs/cuda.md, Ending).
 *
 * Two ranks queue OPERATIONS operations each, one behind the other; each exchanges messages, or moves one in one direction. A kernel may
 * begin at any time, or never: its launch is queued behind other work. It grants what it receives, and writes what it sends once that is
 * granted. Grants and bytes are known by their number alone, and an operation that was given up uses none up: the next one has it again. So
 * a kernel that gives one up says `over` in device memory before it rests, as a copy of the host's does, and what begins then grants
 * nothing and writes nothing. Its blocks begin one after another: one that sends and one that receives may have read different words.
 *
 * FAULTS: a rank's program aborts, or a kernel finds an error of its own, at any moment; the own host and the mate's hear of it later.
 * Copies that say `over` may come late. The half second in which a kernel that was writing ends what it had been granted is the time in
 * which it is not running with a word that was 0 when it began.
 *
 * UNGRANTED_LEAVES: an operation that was given up and has granted nothing leaves at once; else only when the host says so.
 *
 * Checked: nobody writes into the buffer of an operation that has left; an operation that ends well has the bytes of its mate's; a kernel
 * that has begun leaves in the end.
 */
#ifndef OPERATIONS
#define OPERATIONS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef UNGRANTED_LEAVES
#define UNGRANTED_LEAVES 0
#endif
#define QUEUED  0
#define RUNS    1
#define RESTS   2
#define LEFT    3
#define STOP    1
#define LEAVE   2
#define PEER    (1 - r)

byte traffic[OPERATIONS];           /* who sends: bit r for rank r */
byte op[2], kernel[2];              /* the operation whose turn it is at that rank, and its kernel */
bit  looked_at_send[2], looked_at_receive[2];
bit  open[2], grants[2];            /* it may write, it may grant */
bit  writing[2], written[2];
byte target[2];                     /* the mate's operation into whose buffer it writes */
bit  held[2];                       /* its launch stays queued for ever */
/* device memory */
byte sent[2], received[2];          /* messages of operations that ended well */
byte grant[2], grant_op[2];         /* by that rank: the number, and whose buffer; 0 none */
byte placed[2], placed_op[2];       /* at that rank: the number of what has come, and whose bytes */
bit  over[2];
/* the hosts */
byte error[2];                      /* 1 + the operation that found an error; 0 none */
bit  rests[2];
byte stop[2];
bit  failed[2], told_rest[2], halting[2], halted[2];
byte faults = FAULTS;

#define SENDS     ((traffic[op[r]] >> r) & 1)
#define RECEIVES  ((traffic[op[r]] >> PEER) & 1)
#define GRANTED   (grant[r] != 0 && grant_op[r] == op[r])
#define HAS_COME  (GRANTED && placed[r] == received[r] + 1)
#define HAS_BEGUN (kernel[r] == RUNS && looked_at_send[r] && looked_at_receive[r])
#define ERROR     (error[r] == op[r] + 1)
#define IN_BUFFER assert(op[PEER] == target[r] && kernel[PEER] != LEFT)

#ifdef MUT_LEAVES_AT_STOP
#define MAY_LEAVE true
#else
#define MAY_LEAVE (!RECEIVES || HAS_COME || stop[r] == LEAVE || (UNGRANTED_LEAVES && !GRANTED))
#endif
#ifdef MUT_OVER_IS_NOT_READ
#define MAY_WRITE 1
#define MAY_GRANT 1
#elif defined(MUT_GRANTS_WHEN_OVER)
#define MAY_WRITE !over[r]
#define MAY_GRANT 1
#else
#define MAY_WRITE !over[r]
#define MAY_GRANT !over[r]
#endif
#ifdef MUT_GIVES_UP_SILENTLY
#define SAY_OVER skip
#else
#define SAY_OVER over[r] = 1
#endif
#ifdef MUT_KERNELS_ALONE_SAY_OVER
#define HALT halted[r] = 1
#else
#define HALT halted[r] = 1; over[r] = 1
#endif
#ifdef MUT_RESTS_BEFORE_HALTED
#define IS_HALTED halting[r]
#else
#define IS_HALTED halted[r]
#endif
#ifdef MUT_RESTS_WHILE_WRITING
#define WRITES_NO_MORE true
#elif defined(MUT_RESTS_WHEN_LEFT)
#define WRITES_NO_MORE (kernel[r] == LEFT && op[r] == OPERATIONS - 1)
#else
#define WRITES_NO_MORE (rests[r] || kernel[r] == LEFT || kernel[r] == QUEUED || (kernel[r] == RUNS && !open[r]))
#endif

proctype Kernel(bit r)
{
end:
  do
  :: atomic { kernel[r] == QUEUED && !held[r] -> kernel[r] = RUNS }
  :: atomic { kernel[r] == QUEUED && !held[r] -> held[r] = 1 }
  :: atomic { kernel[r] == RUNS && !looked_at_send[r] -> looked_at_send[r] = 1; open[r] = MAY_WRITE }
  :: atomic { kernel[r] == RUNS && !looked_at_receive[r] -> looked_at_receive[r] = 1; grants[r] = MAY_GRANT }
  :: atomic { kernel[r] == RUNS && RECEIVES && grants[r] && !GRANTED -> grant[r] = received[r] + 1; grant_op[r] = op[r] }
  :: atomic { kernel[r] == RUNS && SENDS && open[r] && grant[PEER] == sent[r] + 1 && !writing[r] && !written[r] ->
       writing[r] = 1; target[r] = grant_op[PEER]; IN_BUFFER }
  :: atomic { writing[r] ->
       IN_BUFFER;
       writing[r] = 0; written[r] = 1; target[r] = 0; placed[PEER] = sent[r] + 1; placed_op[PEER] = op[r] }
  :: atomic { HAS_BEGUN && !ERROR && (!SENDS || written[r]) && (!RECEIVES || HAS_COME) ->
       assert(!RECEIVES || placed_op[r] == op[r]);
       sent[r] = sent[r] + SENDS; received[r] = received[r] + RECEIVES; kernel[r] = LEFT }
  /* one block finds it, while another may be writing */
  :: atomic { faults > 0 && kernel[r] == RUNS && error[r] == 0 -> faults--; error[r] = op[r] + 1 }
  /* a block looks at the host's word when it has nothing else to do; all have left then but the last */
  :: atomic { HAS_BEGUN && (stop[r] != 0 || ERROR) && !writing[r] -> SAY_OVER; kernel[r] = RESTS; rests[r] = 1 }
  :: atomic { kernel[r] == RESTS && MAY_LEAVE -> kernel[r] = LEFT }
  :: atomic { kernel[r] == LEFT && op[r] < OPERATIONS - 1 ->
       op[r]++; kernel[r] = QUEUED; looked_at_send[r] = 0; looked_at_receive[r] = 0; open[r] = 0; grants[r] = 0; written[r] = 0 }
  od
}

proctype Host(bit r)
{
end:
  do
  :: atomic { faults > 0 && !failed[r] -> faults--; failed[r] = 1; stop[r] = STOP }
  :: atomic { (failed[PEER] || error[r] != 0) && !failed[r] -> failed[r] = 1; stop[r] = STOP }
  :: atomic { failed[r] && !halting[r] -> halting[r] = 1 }
  :: atomic { halting[r] && !halted[r] -> HALT }
  :: atomic { failed[r] && IS_HALTED && WRITES_NO_MORE && !told_rest[r] -> told_rest[r] = 1 }
  :: atomic { failed[r] && told_rest[PEER] && stop[r] == STOP -> stop[r] = LEAVE }
  od
}

init
{ byte k;
  atomic {
    do
    :: k < OPERATIONS -> if :: traffic[k] = 1 :: traffic[k] = 2 :: traffic[k] = 3 fi; k++
    :: else -> break
    od;
    run Kernel(0); run Kernel(1); run Host(0); run Host(1) }
}

active proctype Monitor()
{ bit r;
  atomic { timeout ->
    do
    :: true -> assert(kernel[r] == LEFT || (kernel[r] == QUEUED && held[r])); if :: r == 0 -> r = 1 :: else -> break fi
    od }
}
