"""What protocol/check checks: configurations of the models, and mutations that must be caught.

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


@dataclass(frozen=True)
class Mutation:
    """A model with one rule replaced; the search must find a counterexample."""

    name: str
    model: str
    defines: tuple[str, ...]
    change: str  # what the rule is replaced by
    caught_by: str  # assertion, or cycle (a run without end)
    shape: str  # of the counterexample


def _defines(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(
        "rail-lossy",
        "rail",
        _defines("NT=2 NG=2 LOSS=1 DUP=1 RESEND=1"),
        "one link: a frame lost, one doubled, a timer that fires early; any order",
    ),
    Configuration(
        "rail-window",
        "rail",
        _defines("NT=3 NG=2 NX=2 RESEND=1"),
        "two transfers at once share one rx slot; data sent twice",
    ),
    Configuration(
        "rail-flap",
        "rail",
        _defines("NT=4 NG=3 FLAP=1 DUP=1"),
        "the link goes down and up again while chunks are on it; late writes of the old generation",
    ),
    Configuration(
        "rail-flap-resend",
        "rail",
        _defines("NT=4 NG=3 FLAP=1 RESEND=1"),
        "late writes and data sent twice together",
    ),
    Configuration(
        "rail-receiver-gives-up",
        "rail",
        _defines("NT=4 NG=3 RXFLAP=1 DUP=1"),
        "the receiver fences a generation on its own, wrongly",
    ),
    Configuration(
        "rail-both-give-up",
        "rail",
        _defines("NT=5 NG=4 RXFLAP=1 FLAP=1 NC=1"),
        "both ends give up on a good link, in any order",
    ),
    Configuration(
        "rails-one-dies",
        "rail",
        _defines("NL=2 NT=2 NG=3 CUT=1"),
        "a rail dies for ever in the middle: all chunks arrive over the other",
    ),
    Configuration(
        "rails-sending-relay-exits",
        "rail",
        _defines("NL=2 NT=2 NG=3 TXEXIT=1"),
        "the process that owns the sending NIC ends",
    ),
    Configuration(
        "rails-receiving-relay-exits",
        "rail",
        _defines("NL=2 NT=2 NG=3 RXEXIT=1"),
        "the process that owns the receiving NIC ends; what it announced is still read",
    ),
    Configuration(
        "rails-into-one-nic",
        "rail",
        _defines("NL=2 NN=1 NT=2 NG=3 TXEXIT=1"),
        "two senders share one rx slot; one of them dies holding it",
    ),
    Configuration(
        "rails-out-of-one-nic",
        "rail",
        _defines("NL=2 NO=1 NT=3 NC=1 NG=3 FLAP=1"),
        "two links share one tx slot; one goes down while its data is under way",
    ),
    Configuration(
        "rail-destination-dies",
        "rail",
        _defines("ND=2 NT=3 NG=2 NX=2 DEXIT=1"),
        "one of two destinations behind a NIC dies; the other completes with the shared rx slot",
    ),
    Configuration("control", "control", (), "three control frames over two carriers: loss, doubling, early resend, death of a carrier"),
    Configuration("doorbell", "doorbell", (), "two writers, a reader that sleeps; stores become visible late"),
    Configuration(
        "groups-differ", "matching", _defines("PROGRAM=1 CHUNKS=1"), "what one rank posts as one operation, another posts as two"
    ),
    Configuration(
        "communicators-opposite",
        "matching",
        _defines("PROGRAM=2 CHUNKS=1"),
        "two communicators in opposite order; the third rank only relays",
    ),
    Configuration(
        "late-receiver", "matching", _defines("PROGRAM=3"), "a receiver posts only after others have used the same sender and slots"
    ),
    Configuration("messages-of-a-pair", "matching", _defines("PROGRAM=4"), "k-th meets k-th; one rank never calls"),
    Configuration("exchange", "matching", _defines("PROGRAM=5 FIRST=2"), "both ways at once, every slot and ring full"),
    Configuration("failing", "failing", (), "a peer of both ranks dies; the operation after that goes on"),
    Configuration("failing-by-cancel", "failing", _defines("WITH_A=0"), "the sender learns of the failure only from its receiver"),
    Configuration("leaving", "leaving", (), "a relay and a source leave in any order"),
    Configuration("leaving-cut-short", "leaving", _defines("EXPIRE=1"), "the drain time ends while a slot is in use"),
    Configuration("leaving-peer-stopped", "leaving", _defines("STOP=1"), "a peer is stopped for ever; the leaving rank gets away"),
    Configuration("nodes-apart", "nodes", (), "ways between two nodes break and heal, each direction on its own"),
    Configuration("groups-differ-full", "matching", _defines("PROGRAM=1"), "the same with two chunks a message", full=True),
    Configuration(
        "communicators-opposite-full", "matching", _defines("PROGRAM=2"), "the same with two chunks a message", full=True, bitstate=True
    ),
    Configuration("rails-one-dies-full", "rail", _defines("NL=2 NT=2 NG=3 CUT=1 RESEND=1"), "a rail dies, data sent twice", full=True),
    Configuration(
        "rail-flap-window-full",
        "rail",
        _defines("NT=4 NG=3 NX=2 FLAP=1"),
        "two transfers at once when the link goes down and up",
        full=True,
    ),
    Configuration(
        "rail-lossy-full",
        "rail",
        _defines("NT=3 NC=3 NG=2 NX=2 LOSS=1"),
        "three chunks, two tx slots, a lost frame",
        full=True,
    ),
)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "no-receiver-fence",
        "rail",
        _defines("MUT_NO_RECEIVER_FENCE NL=2 NN=1 NT=2 NG=3 TXEXIT=1"),
        "a receiver frees slots only at a newer hello",
        "assertion",
        "sender 1 has a slot accepted and dies; no hello ever comes; sender 2's offer waits for the slot for ever",
    ),
    Mutation(
        "second-write",
        "rail",
        _defines("MUT_SECOND_WRITE NT=3 NG=2 NX=2 RESEND=1"),
        "data is taken while other data of the same transfer is being written",
        "assertion",
        "data sent twice, both writes begin, the first lands, the slot goes to another chunk, the second write ends in it",
    ),
    Mutation(
        "no-transfer-tag",
        "rail",
        _defines("MUT_NO_TRANSFER_TAG NT=4 NG=3 FLAP=1 RESEND=1"),
        "data goes into the slot that it names, whether or not its transfer still holds it",
        "assertion",
        "a late write of a fenced transfer falls into the slot of another chunk",
    ),
    Mutation(
        "reuse-before-fence",
        "rail",
        _defines("MUT_REUSE_BEFORE_FENCE NT=4 NG=3 FLAP=1"),
        "a hello frees slots into which a write is under way",
        "assertion",
        "link down and up during a write; the slot is given away; the old write ends in it",
    ),
    Mutation(
        "fence-takes-landed",
        "rail",
        _defines("MUT_FENCE_TAKES_LANDED NT=4 NG=3 FLAP=1"),
        "a hello also frees slots that have landed",
        "assertion",
        "the destination reads a slot that was freed under it",
    ),
    Mutation(
        "forget-finished",
        "rail",
        _defines("MUT_FORGET_FINISHED NT=2 NG=2 DUP=1"),
        "a receiver does not remember finished transfers",
        "assertion",
        "an offer that comes twice takes a slot for data that was sent already; the slot is never freed",
    ),
    Mutation(
        "up-without-hello",
        "rail",
        _defines("MUT_UP_WITHOUT_HELLO NT=4 NG=3 FLAP=1"),
        "a link is up again without the receiver having fenced the old generation",
        "assertion",
        "the slot of a dropped transfer stays taken; the resent chunk waits for it for ever",
    ),
    Mutation(
        "over-only-when-up",
        "rail",
        _defines("MUT_OVER_ONLY_WHEN_UP NT=5 NC=1 NG=4 FLAP=1 RXFLAP=1"),
        "a sender whose link is down ignores that the receiver has given the generation up",
        "assertion",
        "over(g) comes before hello_back(g): the link is up in a generation that the receiver answers no more",
    ),
    Mutation(
        "word-after-announce",
        "rail",
        _defines("MUT_WORD_AFTER_ANNOUNCE NT=4 NG=3 FLAP=1"),
        "the source remembers the link's word as it is after the announcement",
        "assertion",
        "link changes between copy and look: the proxy drops the record, the source sees no change, the chunk is lost",
    ),
    Mutation(
        "retire-by-state",
        "rail",
        _defines("MUT_RETIRE_BY_STATE NT=4 NG=3 FLAP=1"),
        "the source looks only whether the link is up, not at its generation",
        "assertion",
        "link down and up between two looks: the chunk is dropped and never sent again",
    ),
    Mutation(
        "no-retire",
        "rail",
        _defines("MUT_NO_RETIRE NL=2 NT=2 NG=3 CUT=1"),
        "chunks on a dead rail are not sent again",
        "assertion",
        "rail dies with a chunk on it; both sides wait for ever",
    ),
    Mutation(
        "done-at-forward",
        "rail",
        _defines("MUT_DONE_AT_FORWARD NT=4 NG=3 FLAP=1"),
        "a chunk counts as sent when the relay has it",
        "assertion",
        "link goes down with the chunk in the relay's slot: the send completes, the chunk never arrives",
    ),
    Mutation(
        "take-used-slot",
        "rail",
        _defines("MUT_TAKE_USED_SLOT NT=4 NG=2"),
        "slots are taken without looking at their flag",
        "assertion",
        "two chunks in one slot: the older record is stale, its chunk is lost",
    ),
    Mutation(
        "free-tx-early",
        "rail",
        _defines("MUT_FREE_TX_EARLY NL=2 NO=1 NT=4 NG=3 FLAP=1"),
        "a tx slot is freed when its link goes down, before the transport lets go of it",
        "assertion",
        "the slot gets another chunk for another link; the old data frame carries those bytes under the old name",
    ),
    Mutation(
        "count-twice",
        "rail",
        _defines("MUT_COUNT_TWICE NT=4 NG=3 FLAP=1"),
        "a chunk that comes twice is counted twice",
        "assertion",
        "resent chunk and late original are counted as two; the receive completes with a chunk missing",
    ),
    Mutation(
        "free-before-copy",
        "rail",
        _defines("MUT_FREE_BEFORE_COPY NT=4 NG=2"),
        "the destination frees the slot before it has copied it",
        "assertion",
        "the next chunk is written into the slot that is being read",
    ),
    Mutation(
        "ack-before-copy",
        "rail",
        _defines("MUT_ACK_BEFORE_COPY NT=4 NG=2"),
        "the destination acknowledges before it has copied",
        "assertion",
        "the send completes while bytes are not in the user's buffer",
    ),
    Mutation(
        "take-back-unlanded",
        "rail",
        _defines("MUT_TAKE_BACK_UNLANDED ND=2 NT=4 NG=2 NX=2 DEXIT=1"),
        "slots of a dead destination are taken back although data for them may still come",
        "assertion",
        "the slot is given to another chunk and the dead destination's data is written over it",
    ),
    Mutation(
        "announce-to-dead",
        "rail",
        _defines("MUT_ANNOUNCE_TO_DEAD ND=2 NT=4 NG=2 DEXIT=1"),
        "what lands for a destination after its death is announced to it all the same",
        "assertion",
        "nobody frees the slot; the other destination's chunk waits for it for ever",
    ),
    Mutation(
        "no-sequence",
        "control",
        _defines("MUT_NO_SEQUENCE"),
        "control frames are handed on as they come",
        "assertion",
        "a frame overtakes another: the program gets them out of order",
    ),
    Mutation(
        "same-carrier",
        "control",
        _defines("MUT_SAME_CARRIER"),
        "resends go by the same carrier",
        "cycle",
        "the carrier is dead: the frame is sent again for ever",
    ),
    Mutation(
        "ack-new-only",
        "control",
        _defines("MUT_ACK_NEW_ONLY"),
        "a repeated control frame is not acknowledged again",
        "assertion",
        "the acknowledgement was lost; the sender waits for ever",
    ),
    Mutation(
        "no-writer-fence",
        "doorbell",
        _defines("MUT_NO_WRITER_FENCE"),
        "no fence between publishing and looking at the doorbell flag",
        "assertion",
        "the writer looks before its store is visible, the reader before the writer's: it sleeps with work there",
    ),
    Mutation(
        "no-reader-fence",
        "doorbell",
        _defines("MUT_NO_READER_FENCE"),
        "no fence between setting the flag and looking once more",
        "assertion",
        "the mirror image",
    ),
    Mutation(
        "look-before-flag",
        "doorbell",
        _defines("MUT_LOOK_BEFORE_FLAG"),
        "the reader does not look again after it set the flag",
        "assertion",
        "a record published between look and flag rings no bell",
    ),
    Mutation(
        "look-at-one",
        "doorbell",
        _defines("MUT_LOOK_AT_ONE"),
        "the last look covers only some of what roles wait for",
        "assertion",
        "as before, for a freed slot or a link word instead of a record",
    ),
    Mutation(
        "operation-number",
        "matching",
        _defines("MUT_OPERATION_NUMBER PROGRAM=1 CHUNKS=1"),
        "messages are matched by the rank's operation count",
        "assertion",
        "groups differ by rank: numbers never meet, both wait for ever",
    ),
    Mutation(
        "no-communicator",
        "matching",
        _defines("MUT_NO_COMMUNICATOR PROGRAM=2 CHUNKS=1"),
        "messages are matched without their communicator",
        "assertion",
        "opposite order: the bytes of one communicator land in the buffer of the other",
    ),
    Mutation(
        "one-operation-at-a-time",
        "matching",
        _defines("MUT_ONE_OPERATION_AT_A_TIME PROGRAM=2 CHUNKS=1"),
        "a worker finishes an operation before it begins the next (a receiver that waits inside a role for another communicator)",
        "assertion",
        "each rank waits for the operation that the other has not begun",
    ),
    Mutation(
        "push-without-grant",
        "matching",
        _defines("MUT_PUSH_WITHOUT_GRANT PROGRAM=3"),
        "a source does not wait for a grant",
        "assertion",
        "the chunk comes before its receive is posted and has no place to go: lost",
    ),
    Mutation(
        "more-than-granted",
        "matching",
        _defines("MUT_MORE_THAN_GRANTED PROGRAM=4"),
        "a source sends more chunks than were granted",
        "assertion",
        "the destination does not believe the record: the chunk is lost",
    ),
    Mutation(
        "wait-for-all-rows",
        "matching",
        _defines("MUT_WAIT_FOR_ALL_ROWS PROGRAM=4"),
        "a source waits for the rows of all ranks",
        "assertion",
        "a third rank never calls: nothing is ever sent",
    ),
    Mutation(
        "announce-before-copy",
        "matching",
        _defines("MUT_ANNOUNCE_BEFORE_COPY PROGRAM=4"),
        "a slot is announced before it is filled",
        "assertion",
        "the destination copies half-written bytes",
    ),
    Mutation(
        "wait-in-role",
        "matching",
        _defines("MUT_WAIT_IN_ROLE PROGRAM=5 FIRST=2"),
        "the push role waits for a free slot",
        "assertion",
        "both workers wait for the other's pull, which its worker would do next",
    ),
    Mutation(
        "wait-for-grant",
        "matching",
        _defines("MUT_WAIT_FOR_GRANT PROGRAM=2 CHUNKS=1"),
        "the source role waits for one message's grant",
        "assertion",
        "opposite order: each waits for a grant that the other's waiting worker would send",
    ),
    Mutation(
        "drop-early-grant",
        "matching",
        _defines("MUT_DROP_EARLY_GRANT PROGRAM=2 CHUNKS=1"),
        "a grant that comes before its send is posted is dropped",
        "assertion",
        "the destination has granted and says nothing more: both wait",
    ),
    Mutation(
        "take-used-direct-slot",
        "matching",
        _defines("MUT_TAKE_USED_SLOT PROGRAM=4"),
        "a direct slot is taken without looking at its flag",
        "assertion",
        "two chunks in one slot: the older record is stale, its chunk is lost",
    ),
    Mutation(
        "failed-post-takes-no-number",
        "failing",
        _defines("MUT_FAILED_POST_TAKES_NO_NUMBER WITH_A=0"),
        "an operation that fails at once takes no numbers",
        "assertion",
        "the next receive is given the number of the failed one: wrong bytes",
    ),
    Mutation(
        "cancel-of-retired-ignored",
        "failing",
        _defines("MUT_CANCEL_OF_RETIRED_IGNORED"),
        "a cancel of a message that is over here is not answered",
        "assertion",
        "the failing side waits for the answer for ever (until the drain time)",
    ),
    Mutation(
        "cancel-before-post-forgotten",
        "failing",
        _defines("MUT_CANCEL_BEFORE_POST_FORGOTTEN WITH_A=0"),
        "a cancel of a message not yet posted is forgotten",
        "assertion",
        "the send is posted later, its grant is still there: it writes into a buffer that was given back",
    ),
    Mutation(
        "keep-writing",
        "failing",
        _defines("MUT_KEEP_WRITING"),
        "a source answers a cancel and writes on",
        "assertion",
        "a buffer is written after its operation has ended",
    ),
    Mutation(
        "return-without-answer",
        "failing",
        _defines("MUT_RETURN_WITHOUT_ANSWER"),
        "a failing receive ends before the writers of its mapped buffer have answered",
        "assertion",
        "the same",
    ),
    Mutation(
        "new-after-lease-end",
        "leaving",
        _defines("MUT_NEW_AFTER_LEASE_END"),
        "chunks are given to a relay that has said it leaves",
        "assertion",
        "it goes with the chunk in its slot: a second attempt that a leave must not cost",
    ),
    Mutation(
        "no-lease-end",
        "leaving",
        _defines("MUT_NO_LEASE_END"),
        "a relay leaves without telling",
        "assertion",
        "the same",
    ),
    Mutation(
        "no-drain",
        "leaving",
        _defines("MUT_NO_DRAIN"),
        "a relay goes with slots in use",
        "assertion",
        "the same",
    ),
    Mutation(
        "left-not-retired",
        "leaving",
        _defines("MUT_LEFT_NOT_RETIRED EXPIRE=1"),
        "chunks in the slots of a rank that has left are not sent again",
        "assertion",
        "the drain time ended first; the chunk is lost",
    ),
    Mutation(
        "wait-for-leavers",
        "leaving",
        _defines("MUT_WAIT_FOR_LEAVERS"),
        "a leaving rank waits for acknowledgements of ranks that have left",
        "assertion",
        "two ranks leave together: the slower one waits for ever",
    ),
    Mutation(
        "drain-for-ever",
        "leaving",
        _defines("MUT_DRAIN_FOR_EVER STOP=1"),
        "no drain time",
        "assertion",
        "a peer is stopped: the leaving rank waits for ever",
    ),
    Mutation(
        "heard-one-way",
        "nodes",
        _defines("MUT_HEARD_ONE_WAY"),
        "any frame from a node counts as a sign of life, also a ping that this node cannot answer",
        "assertion",
        "one direction is cut: one side declares the other dead, the other hears it and waits for ever",
    ),
    Mutation(
        "answers-the-dead",
        "nodes",
        _defines("MUT_ANSWERS_THE_DEAD"),
        "pings of a node that was declared dead are still answered",
        "assertion",
        "the cut heals after one side's decision and before the other's: that one waits for ever",
    ),
    Mutation(
        "kernel-push-without-grant",
        "kernels",
        _defines("PROGRAM=1 MUT_PUSH_WITHOUT_GRANT"),
        "a kernel fills a slot for a receive whose kernel does not run yet",
        "assertion",
        "the pool is full of chunks for a receiver that launches only after others got theirs through the same pool",
    ),
    Mutation(
        "kernel-push-waits",
        "kernels",
        _defines("PROGRAM=2 MUT_PUSH_WAITS"),
        "a block waits for room in its push role",
        "assertion",
        "both blocks wait for each other's pull",
    ),
    Mutation(
        "kernel-needs-host-call",
        "kernels",
        _defines("PROGRAM=2 MUT_NEEDS_HOST_CALL"),
        "a kernel waits for a host call that the runtime holds back until the kernel has ended",
        "assertion",
        "neither ever comes",
    ),
)
