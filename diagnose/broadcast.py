"""One line for many nodes: what all requests have in common, and what each node's own has besides.

``srun`` gives its standard input to every task. A node's program takes from such a line what is meant for it.
"""

from typing import Any, Dict, List, Mapping, Optional

Request = Dict[str, Any]


def packed(requests: Mapping[str, Mapping[str, Any]]) -> Request:
    """The requests of several nodes as one."""
    common = _common(list(requests.values()))
    return {"common": common, "to": {node: _rest(request, common) for node, request in requests.items()}}


def own(request: Request, node: str) -> Optional[Request]:
    """What is asked of this node: a plain request is for everybody; None where another one is meant."""
    if "to" not in request:
        return request
    named, common = request["to"], request.get("common")
    mine = named.get(node) if isinstance(named, dict) else None
    return _merged(common, mine) if isinstance(common, dict) and isinstance(mine, dict) else None


def _common(requests: List[Mapping[str, Any]]) -> Request:
    found: Request = {}
    for key in requests[0]:
        if not all(key in request for request in requests):
            continue
        values = [request[key] for request in requests]
        if len({repr(value) for value in values}) == 1:  # 1, 1.0 and True are not the same
            found[key] = values[0]
        elif all(isinstance(value, dict) for value in values):
            found[key] = _common(values)
    return found


def _rest(request: Mapping[str, Any], common: Mapping[str, Any]) -> Request:
    found: Request = {}
    for key, value in request.items():
        if key not in common:
            found[key] = value
        elif repr(value) != repr(common[key]):
            found[key] = _rest(value, common[key])
    return found


def _merged(common: Mapping[str, Any], mine: Mapping[str, Any]) -> Request:
    both = {**common, **mine}
    for key in set(common) & set(mine):
        if isinstance(common[key], dict) and isinstance(mine[key], dict):
            both[key] = _merged(common[key], mine[key])
    return both
