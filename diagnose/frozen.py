"""Frozen dataclasses that are made quickly.

The standard library compiles six methods for each class, which for a hundred classes takes 80 ms at each start. Here one is
compiled, ``__init__``; the others are shared by all classes and do what the library's do. Type checkers see the library's.
"""

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool) -> Callable[[type], type]:
        """``dataclasses.dataclass(frozen=True)``. Raises TypeError for what this one does not do."""
        if not frozen:
            raise TypeError("only frozen ones are made here")
        return _made


_MISSING: Any = object()


def _made(cls: type) -> type:
    cls.__doc__ = (
        cls.__doc__ or cls.__name__
    )  # without one dataclasses makes it of the signature, which is slow to find
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    made.__dataclass_params__.eq = True
    made.__init__ = _init(dataclasses.fields(made))
    made.__init__.__qualname__ = f"{cls.__qualname__}.__init__"
    names = [field.name for field in dataclasses.fields(made)]
    made.__values__ = staticmethod(attrgetter(*names) if names else _nothing)
    for name, method in _SHARED.items():
        setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _init(fields: Tuple["dataclasses.Field[Any]", ...]) -> Any:
    """``__init__`` with a parameter for each field, written into the instance's dictionary."""
    defaults: Dict[str, Any] = {"_MISSING": _MISSING}
    parameters: List[str] = []
    values: List[str] = []
    for field in fields:
        value = field.name
        if field.default is not dataclasses.MISSING:
            defaults[f"_{field.name}"] = field.default
            parameters.append(f"{field.name}=_{field.name}")
        elif field.default_factory is not dataclasses.MISSING:
            defaults[f"_make_{field.name}"] = field.default_factory
            parameters.append(f"{field.name}=_MISSING")
            value = f"_make_{field.name}() if {field.name} is _MISSING else {field.name}"
        else:
            parameters.append(field.name)
        values.append(f" own[{field.name!r}] = {value}")
    text = "\n".join([f"def __init__(self, {', '.join(parameters)}):", " own = self.__dict__", *values])
    exec(text, defaults)  # noqa: S102  names of our own classes' fields, as dataclasses does
    return defaults["__init__"]


def _nothing(value: Any) -> Tuple[()]:
    """The values of what has no fields."""
    return ()


def _eq(self: Any, other: Any) -> Any:
    return self.__values__(self) == self.__values__(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(self.__values__(self))


def _repr(self: Any) -> str:
    pairs = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
    return f"{self.__class__.__qualname__}({', '.join(pairs)})"


def _setattr(self: Any, name: str, _value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED = {"__eq__": _eq, "__hash__": _hash, "__repr__": _repr, "__setattr__": _setattr, "__delattr__": _delattr}
