"""Frozen data classes that are quick to make.

`dataclasses` compiles six methods for each frozen class, 1.6 ms a class here; commands that answer in a tenth of a second have dozens of
classes. This compiles `__init__` only, 0.3 ms a class; the other methods are the same for all and need no text of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses

    def dataclass(*, frozen):
        """What `dataclasses.dataclass(frozen=True)` makes."""
        assert frozen, "dataclasses.dataclass makes the others"

        def make(cls):
            made = dataclasses.dataclass(eq=False, repr=False)(cls)
            for name, method in _METHODS.items():
                if name not in cls.__dict__:
                    setattr(made, name, method)
            return made

        return make

    def _set(self, name, value):
        """Once, by `__init__`."""
        values = self.__dict__
        if name in values or name not in self.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        values[name] = value

    def _delete(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _equal(self, other):
        return self.__dict__ == other.__dict__ if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(tuple(self.__dict__.values()))

    def _repr(self):
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{self.__class__.__qualname__}({values})"

    _METHODS = {"__setattr__": _set, "__delattr__": _delete, "__eq__": _equal, "__hash__": _hash, "__repr__": _repr}
