"""Data classes and enumerations that are quick to load and to make.

`dataclasses` imports `inspect`, which takes longer than the interpreter's own start, and compiles six methods for each frozen class, 1.6 ms
a class here; commands that answer in a tenth of a second have dozens of classes. This compiles none: all methods are the same for all
classes and need no text of their own, `__init__` goes by the names of the fields, and writes them at once instead of one by one. What
`dataclasses` offers for instances (`asdict`, `fields`, `replace`) works on these, too.

`enum` and `functools` bring `collections`, `types` and `operator`, together a tenth of a rank's first start (docs/run.md); the members of
enumerations here are made once, have `name` and `value`, and are found by their value (`Reason("absent")`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import enum
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from enum import Enum as Enum
    from enum import IntEnum as IntEnum
    from functools import cached_property as cached_property
    from typing import Any, TypeVar

    Record = TypeVar("Record")

    class StrEnum(str, enum.Enum):
        """Members are texts, equal to their values."""

else:
    _MISSING = object()

    class _Members(type):
        def __init__(cls, name, bases, body):
            super().__init__(name, bases, body)
            cls.__members__ = {}
            kind = next((base for base in cls.__mro__ if base in (int, str)), None)
            for key, value in body.items():
                if not key.startswith("_") and type(value) in (int, str):
                    member = object.__new__(cls) if kind is None else kind.__new__(cls, value)
                    member.name = key
                    member.value = value
                    cls.__members__[key] = member
                    setattr(cls, key, member)

        def __call__(cls, value):
            for member in cls:
                if member.value == value:
                    return member
            raise ValueError(f"{value!r} is not a valid {cls.__qualname__}")

        def __getitem__(cls, name):
            return cls.__members__[name]

        def __iter__(cls):
            return iter(cls.__members__.values())

        def __len__(cls):
            return len(cls.__members__)

        def __contains__(cls, member):
            return member.__class__ is cls

    class Enum(metaclass=_Members):
        """Members are the numbers and texts of the class's body."""

        def __repr__(self):
            return f"<{self.__class__.__qualname__}.{self.name}: {self.value!r}>"

        def __str__(self):
            return f"{self.__class__.__qualname__}.{self.name}"

        def __reduce__(self):
            return self.__class__, (self.value,)

    class IntEnum(Enum, int):
        """Members are numbers, equal to their values."""

        __str__ = int.__repr__

    class StrEnum(Enum, str):
        """Members are texts, equal to their values."""

    class cached_property:  # noqa: N801 - as `functools` has it
        """An attribute that is worked out when first asked for."""

        def __init__(self, work_out):
            self._work_out = work_out
            self.__doc__ = work_out.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._work_out(instance)
            return value

    class field:  # noqa: N801 - as `dataclasses` has it
        """A field's default: a value, or what makes one."""

        def __init__(self, *, default=_MISSING, default_factory=None):
            self.default = default
            self.factory = default_factory

    class _StandardFields:
        """What `dataclasses` asks its classes for, made when it does."""

        def __init__(self, blank, factories):
            self._blank = blank
            self._factories = factories

        def __get__(self, instance, owner):
            import dataclasses

            def standard(name):
                if name in self._factories:
                    return dataclasses.field(default_factory=self._factories[name])
                default = self._blank[name]
                return dataclasses.field() if default is _MISSING else dataclasses.field(default=default)

            # All by name only, so that one without a default may stand behind one that has it.
            told = [(name, owner.__annotations__[name], standard(name)) for name in self._blank]
            made = dataclasses.make_dataclass(owner.__name__, told, kw_only=True).__dataclass_fields__
            owner.__dataclass_fields__ = made
            return made

    def dataclass(cls=None, *, frozen=False):
        """What `dataclasses.dataclass` makes of a class that has no other data class for a base."""

        def make(cls):
            own = cls.__dict__
            blank = {name: own.get(name, _MISSING) for name in cls.__annotations__}  # in the order of the values
            factories = {}
            for name, given in blank.items():
                if given.__class__ is field:
                    blank[name] = given.default
                    if given.default is _MISSING:
                        delattr(cls, name)
                    else:
                        setattr(cls, name, given.default)
                    if given.factory is not None:
                        factories[name] = given.factory
                assert given.__class__.__name__ != "Field", "fields of these classes are made by railweave.records.field"
            cls.__record_fields__ = tuple(blank)
            cls.__dataclass_fields__ = _StandardFields(blank, factories)
            if "__init__" not in own:
                cls.__init__ = _initialiser(cls, blank, factories)
            for name, method in _FROZEN if frozen else _METHODS:
                if name not in own:
                    setattr(cls, name, method)
            return cls

        return make if cls is None else make(cls)

    def _initialiser(cls, blank, factories):
        names = cls.__record_fields__
        count = len(names)
        required = [name for name, default in blank.items() if default is _MISSING]

        def __init__(self, *args, **keywords):  # noqa: N807 - it is one
            values = self.__dict__
            if len(args) == count and not keywords:  # as the small ones are made, of which there are thousands
                values.update(zip(names, args))  # noqa: B905 - as many
                return
            values.update(blank)
            values.update(zip(names, args))  # noqa: B905 - checked below
            if keywords:
                values.update(keywords)
            if len(values) != count or len(args) > count or (keywords and args and not keywords.keys().isdisjoint(names[: len(args)])):
                raise TypeError(
                    f"{cls.__qualname__}() takes {', '.join(names)}; was given {len(args)} values and {', '.join(keywords) or 'no names'}"
                )
            for name in required:
                if values[name] is _MISSING:
                    if name not in factories:
                        raise TypeError(f"{cls.__qualname__}() needs {name}")
                    values[name] = factories[name]()

        return __init__

    def _set(self, name, value):
        raise _frozen()(f"cannot assign to field {name!r}")

    def _delete(self, name):
        raise _frozen()(f"cannot delete field {name!r}")

    def _frozen():
        from dataclasses import FrozenInstanceError

        return FrozenInstanceError

    # By fields: what `functools.cached_property` keeps stands beside them.
    def _values(self):
        values = self.__dict__
        return [values[name] for name in self.__record_fields__]

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        if len(self.__dict__) == len(other.__dict__) == len(self.__record_fields__):  # nothing is kept beside them
            return self.__dict__ == other.__dict__
        return _values(self) == _values(other)

    def _hash(self):
        return hash(tuple(_values(self)))

    def _repr(self):
        values = ", ".join(f"{name}={value!r}" for name, value in zip(self.__record_fields__, _values(self)))  # noqa: B905 - as many
        return f"{self.__class__.__qualname__}({values})"

    _METHODS = (("__eq__", _equal), ("__hash__", None), ("__repr__", _repr))
    _FROZEN = (("__setattr__", _set), ("__delattr__", _delete), ("__eq__", _equal), ("__hash__", _hash), ("__repr__", _repr))


def field_names(record: type | object) -> tuple[str, ...]:
    """Names of the fields of a class made here, or of one of its instances, in order; none of anything else."""
    found: tuple[str, ...] = getattr(record, "__record_fields__", ())
    return found


def replace(record: Record, **changes: Any) -> Record:
    """A copy with other values. Raises TypeError for a name that is no field."""
    names = field_names(record)
    if not changes.keys() <= set(names):
        raise TypeError(f"{type(record).__qualname__} has no {', '.join(sorted(changes.keys() - set(names)))}")
    values = record.__dict__
    made = object.__new__(type(record))
    made.__dict__.update({name: values[name] for name in names})
    made.__dict__.update(changes)
    return made
