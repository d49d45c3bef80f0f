"""Answers of pure functions, remembered for as long as the same objects are asked about."""

from functools import wraps
from typing import Any, Callable, Dict, Tuple, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
KEPT = 8
"""Answers of a function: many checks ask one node's facts the same, then come those of the next node."""


def by_identity(function: Function) -> Function:
    """Remember the last answers by the identity of the arguments, which cannot be hashed: facts hold dictionaries.

    The arguments are kept with the answer, so that no other object can take over their identity. They must not change.
    """
    answers: Dict[Tuple[int, ...], Tuple[Tuple[Any, ...], Any]] = {}

    @wraps(function)
    def call(*arguments: Any) -> Any:
        key = tuple(map(id, arguments))
        if key not in answers:
            answer = function(*arguments)
            if len(answers) >= KEPT:
                answers.clear()
            answers[key] = (arguments, answer)
        return answers[key][1]

    return cast(Function, call)
