"""Sections of facts that tell which of their fields were looked at; otherwise they are like any."""

from dataclasses import fields
from functools import lru_cache
from typing import Any, FrozenSet, Iterator, Optional, Set


class Watched:
    """Made by ``of``: an instance of a class below the section's own."""

    @staticmethod
    def of(section: Optional[Any]) -> Optional[Any]:
        """A section with the same fields that remembers which of them were asked for; None for None."""
        if section is None:
            return None
        made: Any = object.__new__(_kind(section.__class__))
        made.__dict__.update(section.__dict__, **{_SEEN: set()})
        return made


_SEEN = "_looked_at"


def looked_at(section: Any) -> FrozenSet[str]:
    """The fields that were asked for of a watched section; none for None and for what is not watched."""
    seen: Set[str] = getattr(section, "__dict__", {}).get(_SEEN, set())
    return frozenset(seen) & _names(section.__class__) if seen else frozenset()


def forget(section: Any) -> Set[str]:
    """Count anew what is looked at of a section, where it is watched; what had been until now."""
    kept = getattr(section, "__dict__", None)
    if kept is None or _SEEN not in kept:
        return set()
    seen: Set[str] = kept[_SEEN]
    kept[_SEEN] = set()
    return seen


def look(section: Any, names: Set[str]) -> None:
    """Count these fields as looked at, where the section is watched."""
    kept = getattr(section, "__dict__", {})
    if _SEEN in kept:
        kept[_SEEN] |= names


def parts(section: Any) -> Iterator[Any]:
    """What a section, watched or not, holds, and its class; of anything else itself."""
    held = getattr(section, "__dict__", None)
    if held is None:
        yield section
        return
    yield type(section)
    for name, value in held.items():
        if name != _SEEN:
            yield value


@lru_cache(maxsize=None)
def _names(kind: Any) -> FrozenSet[str]:
    return frozenset(field.name for field in fields(kind))


@lru_cache(maxsize=None)
def _kind(kind: Any) -> Any:
    """A class below ``kind``, of the same name, since reasons name the class."""

    def look(self: Any, name: str) -> Any:
        if not name.startswith("__"):
            seen: Optional[Set[str]] = object.__getattribute__(self, "__dict__").get(_SEEN)
            if seen is not None:  # a copy with some fields replaced has none: making it looked at all fields
                seen.add(name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": look})
