"""Answers of pure functions, remembered for as long as the same objects are asked about."""

from functools import wraps
from typing import Any, Callable, Dict, List, Set, Tuple, TypeVar, cast

from ddp_doctor.watched import forget, look, parts

Function = TypeVar("Function", bound=Callable[..., Any])
KEPT = 8
"""Answers of a function: many checks ask one node's facts the same, then come those of the next node."""


def by_identity(function: Function) -> Function:
    """Remember the last answers by the identity of what the arguments hold, which cannot be hashed: facts hold dictionaries.

    Sections of like nodes are objects of their own that share their fields. The arguments are kept with the answer, so that
    no other object can take over an identity; they must not change. What a watched section was asked for counts as asked
    for again when the answer is given again.
    """
    answers: Dict[Tuple[int, ...], Tuple[Tuple[Any, ...], Any, List[Set[str]]]] = {}

    @wraps(function)
    def call(*arguments: Any) -> Any:
        key = tuple(id(part) for argument in arguments for part in parts(argument))
        if key in answers:
            _, answer, seen = answers[key]
        else:
            answer, seen = _noted(function, arguments)
            if len(answers) >= KEPT:
                answers.clear()
            answers[key] = (arguments, answer, seen)
        for argument, names in zip(arguments, seen):
            look(argument, names)
        return answer

    return cast(Function, call)


def _noted(function: Callable[..., Any], arguments: Tuple[Any, ...]) -> Tuple[Any, List[Set[str]]]:
    """The answer, and what of each argument was looked at for it."""
    before = [forget(argument) for argument in arguments]
    try:
        answer = function(*arguments)
    finally:
        seen = [forget(argument) for argument in arguments]
        for argument, first, then in zip(arguments, before, seen):
            look(argument, first | then)
    return answer, seen
