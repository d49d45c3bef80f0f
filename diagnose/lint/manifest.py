"""YAML and JSON: Kubernetes manifests, Compose files, Helm values, CI workflows.

Taken: ``env`` and ``environment`` as a map or a list, ``data`` of a ConfigMap, and the shell text in ``command``, ``args``
and their like. The text is composed to nodes, which know their lines; nothing is constructed from it, aliases are not
copied, and every node is visited once, so that a file of aliases on aliases costs what its text costs.
"""

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Set, Tuple

from ddp_doctor.lint import Found, Item, Problem, shell

TITLE = "a YAML manifest"
LIMIT_CHARACTERS = 2**20
"""Of one file: etcd, where Kubernetes keeps its objects, takes 1.5 MiB of one; PyYAML reads some 0.2 MB a second."""

_LISTS = ("env", "environment", "env_vars", "environment_variables")
_SCRIPTS = ("command", "args", "entrypoint", "run", "script")
_MARK = re.compile(r"^(?:---(?=\s|$)|\.\.\.\s*$)", re.MULTILINE)
_TOP = re.compile(r"^(apiVersion|kind|services|spec|jobs|env|environment|data|x-[\w-]+):", re.MULTILINE)
_TEMPLATE_LINE = re.compile(r"^[ \t]*\{\{[^\n]*\}\}[ \t]*$", re.MULTILINE)
_TEMPLATE = re.compile(r"\{\{[^\n]*?\}\}")


class Place(NamedTuple):
    """Where the walk is: whose environment would stand here, and is it an object of Kubernetes?"""

    scope: str = ""
    kubernetes: bool = False
    config_map: bool = False


def recognises(name: str, text: str) -> int:
    """By name, or by a key that such files begin with."""
    return 3 if re.fullmatch(r".+\.(ya?ml|json)", name, re.IGNORECASE) else 2 if _TOP.search(text) else 0


def variables(text: str) -> Iterator[Item]:
    """What the manifests in a file set, container by container."""
    if len(text) > LIMIT_CHARACTERS:
        cut = text.rfind("\n", 0, LIMIT_CHARACTERS) + 1
        yield Problem(
            text.count("\n", 0, cut) + 1, f"longer than {LIMIT_CHARACTERS >> 20} MiB: not judged from here on"
        )
        text = text[:cut]
    for line, document in documents(_filled_in(text)):
        try:
            yield from _of_document(document, line)
        except RecursionError:
            yield Problem(line + 1, "a document of YAML that is nested too deep to be read")


def documents(text: str) -> Iterator[Tuple[int, str]]:
    """(lines before it, its text) of each document, so that a fault in one leaves the others."""
    starts = [0, *(found.start() for found in _MARK.finditer(text)), len(text)]
    for start, end in zip(starts, starts[1:]):
        body = re.sub(r"^(---|\.\.\.|%[^\n]*)", "", text[start:end])
        if body.strip():
            yield text.count("\n", 0, start), body


def _filled_in(text: str) -> str:
    """Text without the templates of Helm and Jinja: what they will put there is not known."""
    return _TEMPLATE.sub("$(...)", _TEMPLATE_LINE.sub("", text)) if "{{" in text else text


def _of_document(text: str, before: int) -> Iterator[Item]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        yield Problem(before + (mark.line if mark else 0) + 1, f"not YAML: {error.problem or error.context}")
        return
    except yaml.reader.ReaderError as error:
        yield Problem(before + text.count("\n", 0, error.position) + 1, f"not YAML: {error.reason}")
        return
    yield from (item._replace(line=item.line + before) for item in _Walk().of(root, _top(root)))


# --------------------------------------------------------------------------- the walk


def _pairs(node: Any) -> Dict[str, Any]:
    """Key -> value of a mapping whose keys are words."""
    return {key.value: value for key, value in _items(node) if isinstance(key.value, str)}


def _items(node: Any) -> List[Tuple[Any, Any]]:
    return list(node.value) if getattr(node, "id", "") == "mapping" else []


def _members(node: Any) -> List[Any]:
    return list(node.value) if getattr(node, "id", "") == "sequence" else []


def _scalar(node: Any) -> str:
    return str(node.value) if getattr(node, "id", "") == "scalar" else ""


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _tag(node: Any) -> str:
    """str, int, bool, float, null."""
    return str(node.tag).rpartition(":")[2]


def _top(root: Any) -> Place:
    pairs = _pairs(root)
    kubernetes = "apiVersion" in pairs and "kind" in pairs
    return Place(kubernetes=kubernetes, config_map=kubernetes and _scalar(pairs["kind"]) == "ConfigMap")


class _Walk:
    """Through one document, every node once."""

    def __init__(self) -> None:
        self.seen: Set[int] = set()
        self.scopes: Dict[str, int] = {}

    def of(self, node: Any, place: Place) -> Iterator[Item]:
        """What this node and those below it set."""
        if node is None or id(node) in self.seen:
            return
        self.seen.add(id(node))
        for member in _members(node):
            yield from self.of(member, place)
        pairs = _pairs(node)
        scope = self._scope(node, pairs, place)
        yield from (item._replace(scope=scope) if isinstance(item, Found) else item for item in _set_in(pairs, place))
        for key, value in pairs.items():
            yield from self.of(value, place._replace(scope=key))

    def _scope(self, node: Any, pairs: Dict[str, Any], place: Place) -> str:
        """The name of who has this environment; where two have one, the line tells them apart."""
        if not any(key in pairs for key in (*_LISTS, *_SCRIPTS)) and not place.config_map:
            return ""
        name = _scalar(pairs.get("name")) or _scalar(_pairs(pairs.get("metadata")).get("name")) or place.scope
        line = self.scopes.setdefault(name, _line(node))
        return name if line == _line(node) else f"{name}, line {_line(node)}"


def _set_in(pairs: Dict[str, Any], place: Place) -> Iterator[Item]:
    """What the keys of one mapping set."""
    for key in _LISTS:
        yield from _environment(pairs.get(key), place.kubernetes, set())
    if place.config_map and place.scope == "":
        yield from _environment(pairs.get("data"), True, set())
    yield from _scripts(pairs)


def _environment(node: Any, strict: bool, seen: Set[int]) -> Iterator[Item]:
    """A map, with what is merged into it; a list of NAME=value or of name and value."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    for key, value in _items(node):
        if _tag(key) == "merge":
            for merged in (value, *_members(value)):
                yield from _environment(merged, strict, seen)
        else:
            yield from _variable(key, value, strict)
    for member in _members(node):
        pairs = _pairs(member)
        name, equals, text = _scalar(member).partition("=")
        if equals:
            yield Found(_line(member), name, text)
        elif "name" in pairs and "value" in pairs:
            yield from _variable(pairs["name"], pairs["value"], strict)


def _variable(name: Any, value: Any, strict: bool) -> Iterator[Item]:
    """One variable; ``strict``: Kubernetes takes strings alone."""
    if getattr(value, "id", "") != "scalar" or _tag(value) == "null" or not _scalar(name):
        return
    yield Found(_line(value), _scalar(name), _scalar(value))
    if strict and _tag(value) in ("int", "float", "bool"):
        words = f"Kubernetes refuses the manifest: the value of {_scalar(name)} must be in quotes"
        yield Problem(_line(value), words, "misread")


def _scripts(pairs: Dict[str, Any]) -> Iterator[Item]:
    """Commands: a text for a shell, or its words one by one."""
    for key in _SCRIPTS:
        node = pairs.get(key)
        texts = [member for member in (_members(node) or [node]) if _scalar(member)]
        for text in texts:
            first = _line(text) + (1 if text.style in ("|", ">") else 0)
            yield from (item for item in shell.parsed(_scalar(text), first) if isinstance(item, Found))
        words = [shell.Word(_line(text), _scalar(text)) for text in texts]
        yield from (item for item in shell.settings(words, 0) if isinstance(item, Found))
