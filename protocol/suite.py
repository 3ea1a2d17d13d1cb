"""What protocol/check checks: configurations of the models, and mutations that must be caught.

`defines` are preprocessor definitions of the model; each model's head says what they mean and what its faults are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Configuration:
    name: str
    model: str
    defines: tuple[str, ...]
    question: str
    full: bool = False  # only with --full
    bitstate: bool = False  # hashed states: a search that may miss some; only where the exhaustive one does not fit


@dataclass(frozen=True)
class Mutation:
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
)
