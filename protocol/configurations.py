"""What protocol/check checks: configurations of the models, which must hold. Those that must be caught are in
mutations.py and gpu_mutations.py.

`defines` are preprocessor definitions of the model; each model's head says what they mean and what its faults are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Configuration:
    """A model with its sizes and faults; it must hold."""

    name: str
    model: str
    defines: tuple[str, ...]
    question: str
    full: bool = False  # only with --full
    bitstate: bool = False  # hashed states: a search that may miss some; only where the exhaustive one does not fit


def defines(text: str) -> tuple[str, ...]:
    """Of one line, as compilers take them."""
    return tuple(text.split())


CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(
        "rail-lossy",
        "rail",
        defines("NT=2 NG=2 LOSS=1 DUP=1 RESEND=1"),
        "one link: a frame lost, one doubled, a timer that fires early; any order",
    ),
    Configuration(
        "rail-window",
        "rail",
        defines("NT=3 NG=2 NX=2 RESEND=1"),
        "two transfers at once share one rx slot; data sent twice",
    ),
    Configuration(
        "rail-flap",
        "rail",
        defines("NT=4 NG=3 FLAP=1 DUP=1"),
        "the link goes down and up again while chunks are on it; late writes of the old generation",
    ),
    Configuration(
        "rail-flap-resend",
        "rail",
        defines("NT=4 NG=3 FLAP=1 RESEND=1"),
        "late writes and data sent twice together",
    ),
    Configuration(
        "rail-receiver-gives-up",
        "rail",
        defines("NT=4 NG=3 RXFLAP=1 DUP=1"),
        "the receiver fences a generation on its own, wrongly",
    ),
    Configuration(
        "rail-both-give-up",
        "rail",
        defines("NT=5 NG=4 RXFLAP=1 FLAP=1 NC=1"),
        "both ends give up on a good link, in any order",
    ),
    Configuration(
        "rails-one-dies",
        "rail",
        defines("NL=2 NT=2 NG=3 CUT=1"),
        "a rail dies for ever in the middle: all chunks arrive over the other",
    ),
    Configuration(
        "rails-sending-relay-exits",
        "rail",
        defines("NL=2 NT=2 NG=3 TXEXIT=1"),
        "the process that owns the sending NIC ends",
    ),
    Configuration(
        "rails-receiving-relay-exits",
        "rail",
        defines("NL=2 NT=2 NG=3 RXEXIT=1"),
        "the process that owns the receiving NIC ends; what it announced is still read",
    ),
    Configuration(
        "rails-into-one-nic",
        "rail",
        defines("NL=2 NN=1 NT=2 NG=3 TXEXIT=1"),
        "two senders share one rx slot; one of them dies holding it",
    ),
    Configuration(
        "rails-out-of-one-nic",
        "rail",
        defines("NL=2 NO=1 NT=3 NC=1 NG=3 FLAP=1"),
        "two links share one tx slot; one goes down while its data is under way",
    ),
    Configuration(
        "rail-destination-dies",
        "rail",
        defines("ND=2 NT=3 NG=2 NX=2 DEXIT=1"),
        "one of two destinations behind a NIC dies; the other completes with the shared rx slot",
    ),
    Configuration(
        "rail-ahead-lossy",
        "rail",
        defines("NT=3 NG=2 NR=2 AHEAD=1 LOSS=1 RESEND=1"),
        "slots accepted before they are asked for: a frame lost, a timer that fires early",
    ),
    Configuration(
        "rail-ahead-lossy-full",
        "rail",
        defines("NT=3 NG=2 NR=2 AHEAD=1 LOSS=1 DUP=1 RESEND=1"),
        "the same with a frame doubled as well",
        full=True,
    ),
    Configuration(
        "rail-ahead-flap",
        "rail",
        defines("NC=1 NT=3 NG=3 NR=2 AHEAD=1 FLAP=1 DUP=1"),
        "the same while the link goes down and up again: a number accepted in one generation is used in the next",
    ),
    Configuration(
        "rail-ahead-gives-up",
        "rail",
        defines("NC=1 NT=3 NG=3 NR=2 AHEAD=1 RXFLAP=1 RESEND=1"),
        "the same while the receiver fences a generation, wrongly",
    ),
    Configuration(
        "rails-ahead-into-one-nic",
        "rail",
        defines("NC=1 NL=2 NN=1 NT=2 NG=3 NR=2 AHEAD=1 TXEXIT=1"),
        "two senders share two slots, of which one may be accepted ahead; one of the senders dies",
    ),
    Configuration(
        "rails-ahead-into-one-nic-full",
        "rail",
        defines("NL=2 NN=1 NT=2 NG=3 NR=2 AHEAD=1 TXEXIT=1"),
        "the same with two chunks",
        full=True,
    ),
    Configuration(
        "rail-ahead-flap-full",
        "rail",
        defines("NT=4 NG=3 NR=2 AHEAD=1 FLAP=1"),
        "two chunks and a link that goes down and up again",
        full=True,
    ),
    Configuration(
        "rail-ahead-gives-up-full",
        "rail",
        defines("NT=4 NG=3 NR=2 AHEAD=1 RXFLAP=1"),
        "two chunks and a receiver that gives up",
        full=True,
    ),
    Configuration(
        "rail-ahead-destination-dies",
        "rail",
        defines("ND=2 NT=2 NG=2 NX=2 NR=2 AHEAD=1 DEXIT=1"),
        "a slot accepted ahead gets data for a destination that has died",
    ),
    Configuration(
        "rail-ahead-destination-dies-full",
        "rail",
        defines("ND=2 NT=3 NG=2 NX=2 NR=2 AHEAD=1 DEXIT=1"),
        "the same with three numbers for transfers",
        full=True,
    ),
    Configuration("control", "control", (), "three control frames over two carriers: loss, doubling, early resend, death of a carrier"),
    Configuration("doorbell", "doorbell", (), "two writers, a reader that sleeps; stores become visible late"),
    Configuration("groups-differ", "matching", defines("PROGRAM=1 CHUNKS=1"), "what one rank posts as one operation, another posts as two"),
    Configuration(
        "communicators-opposite",
        "matching",
        defines("PROGRAM=2 CHUNKS=1"),
        "two communicators in opposite order; the third rank only relays",
    ),
    Configuration(
        "late-receiver", "matching", defines("PROGRAM=3"), "a receiver posts only after others have used the same sender and slots"
    ),
    Configuration("messages-of-a-pair", "matching", defines("PROGRAM=4"), "k-th meets k-th; one rank never calls"),
    Configuration("exchange", "matching", defines("PROGRAM=5 FIRST=2"), "both ways at once, every slot and ring full"),
    Configuration("failing", "failing", (), "a peer of both ranks dies; the operation after that goes on"),
    Configuration("failing-by-cancel", "failing", defines("WITH_A=0"), "the sender learns of the failure only from its receiver"),
    Configuration("leaving", "leaving", (), "a relay and a source leave in any order"),
    Configuration("leaving-cut-short", "leaving", defines("EXPIRE=1"), "the drain time ends while a slot is in use"),
    Configuration("leaving-peer-stopped", "leaving", defines("STOP=1"), "a peer is stopped for ever; the leaving rank gets away"),
    Configuration(
        "dying", "dying", (), "ends of a destination and a source, with their operations or before; last frames and `got` are lost or not"
    ),
    Configuration("kernels-late", "kernels", defines("PROGRAM=1"), "GPU kernels: a receiver launches only after others got theirs"),
    Configuration("kernels-exchange", "kernels", defines("PROGRAM=2"), "GPU kernels: both ways at once, twice"),
    Configuration(
        "kernels-packets", "kernels", defines("PROGRAM=3"), "GPU kernels: packets and pushes that wait for each other, either way"
    ),
    Configuration(
        "gpu-rails",
        "gpu_rails",
        (),
        "a GPU's blocks list two operations to their engine and make its copies",
    ),
    Configuration(
        "gpu-rails-one-block",
        "gpu_rails",
        defines("BLOCKS=1 PLACES=1"),
        "one resident block, one place for copies",
    ),
    Configuration(
        "gpu-rails-failing",
        "gpu_rails",
        defines("FAIL=1"),
        "the communicator fails at any moment, with a launch still queued",
    ),
    Configuration(
        "gpu-ending",
        "gpu_ending",
        defines(""),
        "two operations a rank, the communicator ends at any moment: nobody writes into what has left, no bytes are another's, all leave",
    ),
    Configuration(
        "gpu-ending-ungranted",
        "gpu_ending",
        defines("UNGRANTED_LEAVES=1"),
        "the same where an operation that was given up and has granted nothing leaves at once",
    ),
    Configuration(
        "gpu-indirect",
        "gpu_indirect",
        defines("PROGRAM=1 NB=2 PROCESSORS=2 PIECES=3"),
        "pieces in slots of a third GPU or the host: two messages, and a kernel at the destination that looks at no paths",
    ),
    Configuration(
        "gpu-indirect-beside-straight",
        "gpu_indirect",
        defines("PROGRAM=4 NB=2 PROCESSORS=2 PIECES=2 STRAIGHT=1 TAIL=1"),
        "one block sends straight, one over the path until the tail; two messages of a pair, any block pulls any piece",
    ),
    Configuration(
        "gpu-indirect-any-block",
        "gpu_indirect",
        defines("PROGRAM=4 NB=2 PROCESSORS=2 PIECES=2 SLOTS=1 ROW=1"),
        "the same with all pieces through one slot",
    ),
    Configuration(
        "gpu-indirect-one-place",
        "gpu_indirect",
        defines("PROGRAM=4 PLACES=1 NB=2 PROCESSORS=2 PIECES=2 STRAIGHT=1"),
        "the second message has the first one's place in the port, and is granted when that one is over",
    ),
    Configuration(
        "gpu-indirect-both-ways",
        "gpu_indirect",
        defines("PROGRAM=2 NB=2 PROCESSORS=2 PIECES=2 SLOTS=1 ROW=1"),
        "paths both ways at once, one slot each, and then once more",
    ),
    Configuration(
        "gpu-indirect-one-resident",
        "gpu_indirect",
        defines("PROGRAM=2 NB=2 PROCESSORS=1 PIECES=2 SLOTS=1"),
        "the same where a rank's second block begins only when its first one has left",
    ),
    Configuration(
        "gpu-indirect-crosswise",
        "gpu_indirect",
        defines("PROGRAM=3 NB=1 PROCESSORS=2 PIECES=2"),
        "two communicators: each rank sends in one and receives in the other, in any order",
    ),
    Configuration(
        "gpu-indirect-failing",
        "gpu_indirect",
        defines("PROGRAM=1 NB=2 PROCESSORS=2 PIECES=2 SLOTS=1 ROW=1 FAIL=1"),
        "the communicator ends at any moment, with pieces in slots",
    ),
    Configuration(
        "gpu-indirect-failing-both-ways",
        "gpu_indirect",
        defines("PROGRAM=2 NB=1 PIECES=2 SLOTS=1 FAIL=1"),
        "the same both ways, and operations behind the one that was given up",
    ),
    Configuration(
        "gpu-indirect-failing-straight",
        "gpu_indirect",
        defines("PROGRAM=2 NB=2 PROCESSORS=1 PIECES=2 STRAIGHT=1 FAIL=1"),
        "the same with a block that writes straight into the buffer",
    ),
    Configuration(
        "gpu-pulls",
        "gpu_pulls",
        defines("PROGRAM=1 OPERATIONS=3"),
        "the destination fetches a granted message's second half, or the source pushes it, as each end wants; three operations in a row",
    ),
    Configuration(
        "gpu-pulls-one-place",
        "gpu_pulls",
        defines("PROGRAM=1 PLACES=1"),
        "the same in two operations, where the next grant takes the place of the last one before all blocks have seen that",
    ),
    Configuration(
        "gpu-pulls-one-resident",
        "gpu_pulls",
        defines("PROGRAM=2 PROCESSORS=1 FIRST=2"),
        "both ways at once, where a rank's second block begins only when its first one has left",
    ),
    Configuration(
        "gpu-pulls-both-ways",
        "gpu_pulls",
        defines("PROGRAM=2 SECOND=1"),
        "both ways at once, two blocks at each end",
    ),
    Configuration(
        "gpu-pulls-crosswise",
        "gpu_pulls",
        defines("PROGRAM=3 NB=1"),
        "two communicators: each rank sends in one and receives in the other, in any order",
    ),
    Configuration(
        "gpu-pulls-one-of-two",
        "gpu_pulls",
        defines("PROGRAM=4 PLACES=1"),
        "two messages in one operation of the source's, of which it offers one, in one place; two operations of the destination's",
    ),
    Configuration(
        "gpu-pulls-of-two",
        "gpu_pulls",
        defines("PROGRAM=5"),
        "two operations of the source's, one of the destination's, which fetches of both",
    ),
    Configuration(
        "gpu-pulls-failing",
        "gpu_pulls",
        defines("PROGRAM=1 PLACES=1 NB=1 FAIL=1"),
        "the communicator ends at any moment, with offers that stand and operations behind",
    ),
    Configuration(
        "gpu-pulls-failing-source",
        "gpu_pulls",
        defines("PROGRAM=1 OPERATIONS=1 NB=2 NB_1=1 FAIL=1"),
        "the same with two blocks at the source",
    ),
    Configuration(
        "gpu-pulls-failing-destination",
        "gpu_pulls",
        defines("PROGRAM=1 OPERATIONS=1 NB=1 NB_1=2 FAIL=1"),
        "the same with two blocks at the destination",
    ),
    Configuration(
        "gpu-pulls-failing-both-ways",
        "gpu_pulls",
        defines("PROGRAM=2 NB=1 FAIL=1"),
        "the same both ways",
    ),
    Configuration(
        "gpu-trains",
        "gpu_trains",
        defines("PROGRAM=1 WARPS_1=3"),
        "trains of packets both ways, each waiting for credits; two warps and three",
    ),
    Configuration(
        "gpu-trains-in-two",
        "gpu_trains",
        defines("PROGRAM=2 WARPS_1=3"),
        "what is one train at one end are two operations at the other, either way",
    ),
    Configuration(
        "gpu-trains-split",
        "gpu_trains",
        defines("PROGRAM=2 SPLIT=1 WARPS_1=3"),
        "the same with warps that only send and others that only receive",
    ),
    Configuration(
        "gpu-trains-one-slot",
        "gpu_trains",
        defines("PROGRAM=1 SLOTS=1 WARPS_1=3"),
        "both ways, each packet waiting for the credit of the one before it",
    ),
    Configuration(
        "gpu-trains-failing",
        "gpu_trains",
        defines("PROGRAM=2 WARPS_0=1 WARPS_1=2 FAIL=1"),
        "the communicator ends at any moment, with packets in slots",
    ),
    Configuration(
        "gpu-staging",
        "gpu_staging",
        defines("PROGRAM=1"),
        "receives into memory that mates cannot map: three operations on two streams, a buffer that comes late and is too small",
    ),
    Configuration(
        "gpu-staging-crosswise",
        "gpu_staging",
        defines("PROGRAM=2"),
        "two communicators with such receives, queued in opposite order on streams of their own",
    ),
    Configuration("nodes-apart", "nodes", (), "ways between two nodes break and heal, each direction on its own"),
    Configuration("endpoints", "endpoints", defines("FLAPS=4"), "both ends of a link hold it for lost, wrongly, and make new endpoints"),
    Configuration(
        "eager", "eager", defines("CREDITS=1 FAIL=2"), "small messages without a grant: one credit, receives posted in another order"
    ),
    Configuration(
        "eager-leaving", "eager", defines("CREDITS=4 FAIL=2"), "the same with credits for all: the source leaves before they are taken"
    ),
    Configuration(
        "eager-large-for-source",
        "eager",
        defines("MISMATCH=1 CREDITS=2 FAIL=1"),
        "a message is large for its source, small for its destination",
    ),
    Configuration(
        "eager-large-for-destination",
        "eager",
        defines("MISMATCH=2 CREDITS=4 FAIL=1"),
        "a message is small for its source, large for its destination",
    ),
    Configuration("gpu-ending-two-faults-full", "gpu_ending", defines("FAULTS=2"), "both ranks abort, or find an error", full=True),
    Configuration(
        "gpu-indirect-crosswise-full",
        "gpu_indirect",
        defines("PROGRAM=3 NB=2 NB_OTHER=1 PROCESSORS=3 PIECES=1 SLOTS=1 ROW=1"),
        "two communicators with two blocks and one, and a processor for each",
        full=True,
    ),
    Configuration(
        "gpu-indirect-beside-straight-full",
        "gpu_indirect",
        defines("PROGRAM=4 NB=2 PROCESSORS=2 PIECES=3 STRAIGHT=1 TAIL=1"),
        "one block sends straight, one over the path until the tail; three pieces a message",
        full=True,
    ),
    Configuration(
        "gpu-indirect-any-block-full",
        "gpu_indirect",
        defines("PROGRAM=4 NB=2 PROCESSORS=2 PIECES=2"),
        "two messages of a pair, two slots, two pieces in a row",
        full=True,
    ),
    Configuration(
        "gpu-pulls-both-ways-full",
        "gpu_pulls",
        defines("PROGRAM=2"),
        "both ways at once, two pieces to fetch each way",
        full=True,
    ),
    Configuration(
        "gpu-pulls-failing-full",
        "gpu_pulls",
        defines("PROGRAM=1 OPERATIONS=1 FAIL=1"),
        "the communicator ends at any moment, two blocks at each end",
        full=True,
    ),
    Configuration(
        "gpu-pulls-failing-behind-full",
        "gpu_pulls",
        defines("PROGRAM=1 PLACES=1 NB=1 NB_1=2 SECOND=1 FAIL=1"),
        "the same with an operation behind, one block and two",
        full=True,
    ),
    Configuration(
        "gpu-pulls-failing-crosswise-full",
        "gpu_pulls",
        defines("PROGRAM=3 NB=1 SECOND=1 FAIL=1"),
        "two communicators, of which one ends at any moment",
        full=True,
    ),
    Configuration(
        "gpu-trains-failing-full",
        "gpu_trains",
        defines("PROGRAM=1 FAIL=1"),
        "the same both ways at once, two warps each",
        full=True,
    ),
    Configuration("groups-differ-full", "matching", defines("PROGRAM=1"), "the same with two chunks a message", full=True),
    Configuration(
        "communicators-opposite-full", "matching", defines("PROGRAM=2"), "the same with two chunks a message", full=True, bitstate=True
    ),
    Configuration("rails-one-dies-full", "rail", defines("NL=2 NT=2 NG=3 CUT=1 RESEND=1"), "a rail dies, data sent twice", full=True),
    Configuration(
        "rail-flap-window-full",
        "rail",
        defines("NT=4 NG=3 NX=2 FLAP=1"),
        "two transfers at once when the link goes down and up",
        full=True,
    ),
    Configuration(
        "rail-lossy-full",
        "rail",
        defines("NT=3 NC=3 NG=2 NX=2 LOSS=1"),
        "three chunks, two tx slots, a lost frame",
        full=True,
    ),
)
