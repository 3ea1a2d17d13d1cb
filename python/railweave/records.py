"""Data classes that are quick to load and to make.

`dataclasses` imports `inspect`, which takes longer than the interpreter's own start, and compiles six methods for each frozen class, 1.6 ms
a class here; commands that answer in a tenth of a second have dozens of classes. This compiles none: all methods are the same for all
classes and need no text of their own, `__init__` goes by the names of the fields, and writes them at once instead of one by one. What
`dataclasses` offers for instances (`asdict`, `fields`, `replace`) works on these, too.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from typing import Any, TypeVar

    Record = TypeVar("Record")
else:
    _MISSING = object()

    class field:  # noqa: N801 - as `dataclasses` has it
        """A field's default: a value, or what makes one."""

        def __init__(self, *, default=_MISSING, default_factory=None):
            self.default = default
            self.factory = default_factory

    class _StandardFields:
        """What `dataclasses` asks its classes for, made when it does."""

        def __init__(self, fields):
            self._fields = fields

        def __get__(self, instance, owner):
            import dataclasses

            def standard(one):
                if one.factory is not None:
                    return dataclasses.field(default_factory=one.factory)
                return dataclasses.field() if one.default is _MISSING else dataclasses.field(default=one.default)

            # All by name only, so that one without a default may stand behind one that has it.
            told = [(name, owner.__annotations__[name], standard(one)) for name, one in self._fields.items()]
            made = dataclasses.make_dataclass(owner.__name__, told, kw_only=True).__dataclass_fields__
            owner.__dataclass_fields__ = made
            return made

    def dataclass(cls=None, *, frozen=False):
        """What `dataclasses.dataclass` makes of a class that has no other data class for a base."""

        def make(cls):
            fields = {name: _field(cls, name) for name in cls.__annotations__}
            own = {
                "__init__": _initialiser(cls, fields),
                "__dataclass_fields__": _StandardFields(fields),
                "__record_fields__": tuple(fields),
            }
            for name, method in {**(_FROZEN if frozen else _METHODS), **own}.items():
                if name not in cls.__dict__:
                    setattr(cls, name, method)
            return cls

        return make if cls is None else make(cls)

    def _field(cls, name):
        given = cls.__dict__.get(name, _MISSING)
        assert type(given).__name__ != "Field", "fields of these classes are made by railweave.records.field"
        if isinstance(given, field):
            if given.default is _MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, given.default)
            return given
        return field(default=given)

    def _initialiser(cls, fields):
        names = tuple(fields)
        count = len(names)
        # In the fields' order, which is that of the values; a field without a default keeps the mark.
        blank = {name: one.default for name, one in fields.items()}
        required = tuple(name for name, one in fields.items() if one.default is _MISSING)
        factories = {name: one.factory for name, one in fields.items() if one.factory is not None}

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

    _METHODS = {"__eq__": _equal, "__hash__": None, "__repr__": _repr}
    _FROZEN = {"__setattr__": _set, "__delattr__": _delete, "__eq__": _equal, "__hash__": _hash, "__repr__": _repr}


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
