"""Quick data classes behave as those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import pickle
from typing import Any

import pytest

from railweave.records import Enum, IntEnum, StrEnum, cached_property, dataclass, field, field_names, replace


@dataclass(frozen=True)
class Quick:
    """A record."""

    one: int
    two: tuple[str, ...] = ()
    three: list[int] = field(default_factory=list)


@dataclass
class Changing:
    """One that can be changed."""

    one: int = 1
    two: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Keeping:
    """One that works something out and keeps it."""

    value: int

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.value


@dataclass(frozen=True)
class Said:
    """With a text of its own."""

    value: int

    def __repr__(self) -> str:
        return "said"


Usual = dataclasses.make_dataclass("Quick", [("one", int), ("two", Any, ()), ("three", Any, None)], frozen=True)


def test_as_the_usual_ones() -> None:
    quick, usual = Quick(1, ("a",), [2]), Usual(1, ("a",), [2])
    assert repr(quick) == repr(usual)
    assert dataclasses.asdict(quick) == dataclasses.asdict(usual)
    assert [field.name for field in dataclasses.fields(quick)] == ["one", "two", "three"]
    assert dataclasses.replace(quick, one=3) == Quick(3, ("a",), [2])
    assert pickle.loads(pickle.dumps(quick)) == copy.deepcopy(quick) == quick
    assert Quick(1).three is not Quick(1).three
    assert hash(Said(1)) == hash(Said(1))
    with pytest.raises(TypeError):
        hash(quick)  # a list is in it
    with pytest.raises(TypeError):
        Quick()  # type: ignore[call-arg]


def test_wrong_arguments_are_refused_as_usual() -> None:
    for make in (Quick, Usual):
        wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((), {}),
            ((1, (), [], 4), {}),
            ((1,), {"four": 4}),
            ((1,), {"one": 1}),
            ((), {"two": ()}),
        ]
        for args, keywords in wrong:
            with pytest.raises(TypeError):
                make(*args, **keywords)


def test_the_order_of_keywords_does_not_matter() -> None:
    one, other = Quick(three=[], one=1, two=("a",)), Quick(one=1, two=("a",), three=[])
    assert one == other and repr(one) == repr(other)
    assert Said(value=1) == Said(1) and hash(Said(value=1)) == hash(Said(1))


def test_equal_only_to_its_own_kind() -> None:
    assert Quick(1) == Quick(1)
    assert Quick(1) != Quick(2)
    assert Quick(1) != Usual(1, (), [])
    assert Said(1) != 1


def test_nothing_can_be_changed() -> None:
    for change in (lambda quick: setattr(quick, "one", 2), lambda quick: setattr(quick, "new", 2), lambda quick: delattr(quick, "one")):
        quick = Quick(1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            change(quick)
        assert quick == Quick(1)


def test_one_that_is_not_frozen_can_be_changed_and_has_no_hash() -> None:
    changing = Changing()
    changing.one = 2
    assert changing == Changing(2) != Changing()
    assert dataclasses.asdict(changing) == {"one": 2, "two": []}
    with pytest.raises(TypeError):
        hash(changing)


def test_names_and_copies_without_the_standard_library() -> None:
    quick = Quick(1, ("a",), [2])
    assert field_names(quick) == field_names(Quick) == ("one", "two", "three")
    assert field_names(1) == ()
    assert replace(quick, one=3) == dataclasses.replace(quick, one=3)
    assert quick.one == 1
    with pytest.raises(TypeError, match="has no four"):
        replace(quick, four=4)


def test_what_is_kept_beside_the_fields_is_neither_compared_nor_copied() -> None:
    keeping = Keeping(2)
    assert keeping.twice == 4
    assert keeping == Keeping(2) and hash(keeping) == hash(Keeping(2)) and repr(keeping) == "Keeping(value=2)"
    assert replace(keeping, value=3).twice == 6


def test_methods_of_the_class_stay() -> None:
    assert repr(Said(1)) == "said"


class Colour(Enum):
    """Names for things."""

    red = "r"
    blue = "b"


class Level(IntEnum):
    """Numbers with names."""

    low = 0
    high = 3


class Word(StrEnum):
    """Texts with names."""

    yes = "ja"
    no = "nein"


@pytest.mark.parametrize("kind", [Colour, Level, Word])
def test_enumerations_as_the_usual_ones(kind: type[Any]) -> None:
    usual = enum.Enum("usual", [(member.name, member.value) for member in kind])
    assert list(kind.__members__) == [member.name for member in kind] == list(usual.__members__)
    for member in kind:
        assert kind(member.value) is kind[member.name] is getattr(kind, member.name) is member
        assert pickle.loads(pickle.dumps(member)) is copy.deepcopy(member) is member
        assert isinstance(member, kind) and member in kind
        assert repr(member) == f"<{kind.__name__}.{member.name}: {member.value!r}>"
    with pytest.raises(ValueError, match="'other' is not a valid"):
        kind("other")
    with pytest.raises(KeyError):
        kind["other"]
    assert len(set(kind)) == len(kind) == 2


def test_enumerations_are_what_their_values_are() -> None:
    assert Level.high == 3 and Level.low < Level.high and max(Level) is Level.high and str(Level.high) == "3"
    assert Word.yes == "ja" and {Word.yes: 1}["ja"] == 1  # type: ignore[comparison-overlap, index]
    assert Colour.red != "r" and str(Colour.red) == "Colour.red"  # type: ignore[comparison-overlap]


def test_what_is_kept_is_worked_out_once() -> None:
    asked = []

    class Asked:
        @cached_property
        def answer(self) -> int:
            """What it is."""
            asked.append(self)
            return 42

    one = Asked()
    assert (one.answer, one.answer, len(asked)) == (42, 42, 1)
    assert Asked.__dict__["answer"].__doc__ == "What it is."
    assert Asked().answer == 42 and len(asked) == 2
