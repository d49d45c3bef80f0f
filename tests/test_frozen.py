"""Frozen classes: they do what the standard library's do."""

import dataclasses
from typing import Dict, Optional, Tuple

import msgspec
import pytest
from ddp_doctor import facts, frozen, tables


def classes(decorator):
    @decorator(frozen=True)
    class Base:
        name: str
        sizes: Tuple[int, ...] = ()

    @decorator(frozen=True)
    class Thing(Base):
        more: Optional[str] = None
        unread: Dict[str, str] = dataclasses.field(default_factory=dict)

    return Thing


OURS, LIBRARY = classes(frozen.dataclass), classes(dataclasses.dataclass)


@pytest.mark.parametrize("arguments", [("a",), ("a", (1, 2)), ("a", (1,), "b", {"c": "d"})])
def test_they_look_and_compare_alike(arguments):
    ours, other = OURS(*arguments), LIBRARY(*arguments)
    assert repr(ours) == repr(other)
    assert dataclasses.asdict(ours) == dataclasses.asdict(other)
    assert ours == OURS(*arguments)
    assert ours != other
    assert ours != dataclasses.replace(ours, name="other")


def test_equal_ones_are_one_in_a_set():
    assert len({facts.Reason("a", "b"), facts.Reason("a", "b"), facts.Reason("a", "c")}) == 2


def test_each_has_a_dictionary_of_its_own():
    assert OURS("a").unread is not OURS("a").unread


@pytest.mark.parametrize("arguments", [(), ("a", (), None, {}, "too many")])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(TypeError, match="__init__"):
        OURS(*arguments)


def test_nothing_is_changed_afterwards():
    thing = OURS("a")
    with pytest.raises(dataclasses.FrozenInstanceError, match="name"):
        thing.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="name"):
        del thing.name
    with pytest.raises(TypeError, match="frozen"):
        frozen.dataclass(frozen=False)


def test_msgspec_reads_and_writes_them():
    gpu = facts.Gpu(3, name="x", throttle=("a",), unread={"uuid": facts.Reason("absent", "y")})
    assert msgspec.json.decode(msgspec.json.encode(gpu), type=facts.Gpu) == gpu


def test_rows_that_inherit_keep_their_order():
    assert [f.name for f in dataclasses.fields(tables.Major)][:5] == [
        "confidence", "source", "source2", "disagreement", "note",
    ]  # fmt: skip
