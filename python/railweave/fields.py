"""JSON documents, read strictly: what is wrong is an error of the caller's type that names file, place, and what was expected."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from railweave.errors import Error

# Characters of a document. The longest are results of `railweave bench alltoallv --gpus`: 32 kB for the 1,000 single calls of a system's
# round, so that these are 8,000 of them; by default there are 108.
_MOST_TEXT = 1 << 28


class Fields:
    """Of one document. `source` is its file in errors, `kind` what it should be; `at` is a field's place in it, as `lab.nodes`."""

    def __init__(self, source: str | Path, kind: str, error: type[Error]) -> None:
        self.source, self.kind, self.error = source, kind, error

    def file(self, most: int = _MOST_TEXT + 1) -> str:
        """The text of the file that the source names, or so many characters of it: by default one more than `document` takes."""
        try:
            with Path(self.source).open(encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_size > 4 * _MOST_TEXT:  # bytes: not worth the memory to be told so
                    raise self.too_long()
                return file.read(most)
        except OSError as error:
            raise self.error(f"{self.source}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise self.none("not UTF-8 text") from None

    def too_long(self) -> Error:
        """Of a text that is none of these."""
        return self.none(f"more than {_MOST_TEXT} characters")

    def document(self, text: str, form: str, version: int) -> dict[str, Any]:
        """The object in a text, of this format and version."""
        if len(text) > _MOST_TEXT:
            raise self.too_long()
        try:
            found = json.loads(text)
        except RecursionError:
            raise self.none("nested too deep") from None
        except ValueError as error:
            raise self.none(f"not JSON ({error})") from error
        if not isinstance(found, dict) or found.get("format") != form:
            raise self.none(f"no format {form}")
        if found.get("version") != version:
            raise self.fail("version", found.get("version"), f"version {version} of {self.kind}")
        return found

    def none(self, why: str) -> Error:
        """The error of what is no such document at all."""
        return self.error(f"{self.source}: {why}; expected {self.kind}")

    def fail(self, at: str, found: object, expected: str) -> Error:
        """The error of a value that is not what it should be."""
        return self.error(f"{self.source}: {at}: {shown(found)}; expected {expected}")

    def keys(self, at: str, found: object, names: Sequence[str]) -> dict[str, Any]:
        """An object that has all these fields."""
        if not isinstance(found, dict):
            raise self.fail(at, found, "an object")
        for name in names:
            if name not in found:
                raise self.error(f"{self.source}: {at}: no {name}; expected {', '.join(names)}")
        return found

    def only_keys(self, at: str, found: object, names: Sequence[str]) -> dict[str, Any]:
        """An object that has all these fields and no others."""
        row = self.keys(at, found, names)
        for name in row:
            if name not in names:
                raise self.fail(at, name, f"only {', '.join(names)}")
        return row

    def rows(self, at: str, found: object, least: int = 0, most: int | None = None) -> list[Any]:
        """A list of so many; where `most` is None, of any number from `least` on."""
        if not isinstance(found, list) or len(found) < least or (most is not None and len(found) > most):
            many = f"{least} or more" if most is None else f"{least} to {most}" if most > least else f"{least}"
            raise self.fail(at, found, f"a list of {many}")
        return found

    def text(self, at: str, found: object) -> str:
        """Any text."""
        if not isinstance(found, str):
            raise self.fail(at, found, "text")
        return found

    def whole(self, at: str, found: object, least: int, most: int) -> int:
        """A whole number within these bounds; JSON's true is none."""
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self.fail(at, found, f"a whole number from {least} to {most}")
        return found

    def number(self, at: str, found: object, least: float, most: float, expected: str) -> float:
        """A number within these bounds, which is not NaN; `expected` says its unit."""
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not least <= found <= most:
            raise self.fail(at, found, expected)
        return found


def shown(found: object) -> str:
    """On one line; not what stands in lists and objects, which may be nested too deep to be written."""
    if isinstance(found, (list, dict)) and found:
        return f"a list of {len(found)}" if isinstance(found, list) else "an object"
    text = json.dumps(found)
    return text if len(text) <= 60 else text[:57] + "..."
