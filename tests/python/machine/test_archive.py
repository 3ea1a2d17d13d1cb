"""The tar reader of recordings against the standard library's."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.machine import archive

NAMES = st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"]), min_size=1, max_size=180).filter(
    lambda name: not name.startswith("/") and not name.endswith("/")
)


def written(members: list[tuple[str, bytes]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            file.addfile(member, io.BytesIO(body))
    return stream.getvalue()


@given(st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=6))
def test_reads_what_the_standard_library_writes(members: list[tuple[str, bytes]]) -> None:
    assert list(archive.members(written(members))) == [(name, len(body), body) for name, body in members]


@given(st.data())
def test_damage_is_named_and_never_crashes(data: st.DataObject) -> None:
    content = bytearray(written([("manifest.json", b"{}"), ("root/" + "ä" * 120, b"x" * 600)]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        for name, size, body in archive.members(cut):
            assert isinstance(name, str)
            assert len(body) <= size
    except archive.ArchiveError as error:
        assert str(error)


def test_a_wrong_checksum_ends_the_reading() -> None:
    content = bytearray(written([("a", b"1")]))
    content[0] ^= 1
    with pytest.raises(archive.ArchiveError, match="checksum"):
        list(archive.members(bytes(content)))
