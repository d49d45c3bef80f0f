"""Linting files: from a path to facts of what it sets, and to a report by the checks of the environment."""

import os
import re
import sys
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ddp_doctor import __version__, compat, engine, given, importers, lint, redact, summary, variables
from ddp_doctor.config import Config
from ddp_doctor.facts import SECTIONS, Env, How, NodeFacts, Reason, Torch, Variable
from ddp_doctor.importers import section
from ddp_doctor.lint import Found, Item, Problem
from ddp_doctor.model import REPORT_SCHEMA_VERSION, Node, Outcome, Report, Severity, Summary, Tool, Verdict
from ddp_doctor.registry import Check
from ddp_doctor.units import plural

VIA = "lint"
LIMIT_BYTES = 2**24
"""A hand-written file is short; one with a stray 10 MB line must not hide its other lines."""
TEXT_LIMIT_CHARACTERS = 2**21
"""Of the lines that can be read: some seconds of work, and far more than people write."""
LINE_LIMIT_CHARACTERS = 2**16
"""Longer than any line that a person writes, shorter than what costs time."""
SETTINGS_LIMIT = 1000
"""So many variables of one file are judged: each unknown name costs some milliseconds, and no person writes as many."""
PROBLEMS = 20
"""So many of one file are told, and as many lines with NUL bytes make a file binary."""

_SILENT = Reason("not-asked", "a file says nothing of it")
_NOT_FOR_FILES = ("env/settings-in-files",)
"""Checks that tell of something hidden; who names the file knows of it."""
_ESCAPED = re.compile(r"\\?x[89a-f][0-9a-f]")
"""A byte that is not UTF-8, as it was decoded; a format may have taken the backslash for its own."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class File(NamedTuple):
    """A file and what it sets."""

    path: str
    kind: str
    """The format's title."""
    found: Tuple[Found, ...]
    problems: Tuple[Problem, ...]
    nccl_conf: bool = False


# --------------------------------------------------------------------------- from a path to what it sets


def read(path: str) -> File:
    """What a file sets; "-" is standard input. Raises OSError."""
    name = "standard input" if path == "-" else path
    content = _content(path)
    text, problems = cleaned(content[:LIMIT_BYTES])
    if len(content) > LIMIT_BYTES or len(text) > TEXT_LIMIT_CHARACTERS:
        text = text[: text.rfind("\n", 0, TEXT_LIMIT_CHARACTERS) + 1]
        problems.append(Problem(text.count("\n"), "the file is too long: the rest of it was not judged"))
    kind = lint.format_of(os.path.basename(path), text)
    items = [*problems, *_decodable(dict.fromkeys(kind.variables(text)), content)]
    found = [item for item in items if isinstance(item, Found) and concerns(item.name)]
    if len(found) > SETTINGS_LIMIT:
        words = f"{SETTINGS_LIMIT} variables stand before this line: the rest was not judged"
        items.append(Problem(found[SETTINGS_LIMIT].line, words))
    return File(
        name,
        kind.TITLE,
        tuple(found[:SETTINGS_LIMIT]),
        _first(sorted((item for item in items if isinstance(item, Problem)), key=lambda problem: problem.line)),
        getattr(kind, "NCCL_CONF", False),
    )


def _content(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(LIMIT_BYTES + 1)
    return given.content(path, LIMIT_BYTES, cut=True)


def cleaned(content: bytes) -> Tuple[str, List[Problem]]:
    """Text in which lines that nobody can read are empty, and what is wrong with these."""
    lines = importers.decoded(content).split("\n")
    problems = []
    for number, line in enumerate(lines, 1):
        fault = _fault(line)
        if fault:
            problems.append(Problem(number, fault))
            lines[number - 1] = ""
    if sum("NUL" in problem.text for problem in problems) > PROBLEMS:
        return "", [Problem(1, "a binary file: nothing of it was judged")]
    return _CONTROLS.sub("\ufffd", "\n".join(lines)), problems


def _fault(line: str) -> str:
    if "\0" in line:
        return "a NUL byte: the line was not judged"
    if len(line) > LINE_LIMIT_CHARACTERS:
        return f"{len(line):,} characters long: the line was not judged"
    return ""


def _decodable(items: Iterable[Item], content: bytes) -> Iterator[Item]:
    """Items whose values are text; bytes that are not UTF-8 became escapes, which nobody wrote."""
    bad = set() if content[:2] in (b"\xff\xfe", b"\xfe\xff") else set(_not_utf8(content))
    for item in items:
        if isinstance(item, Found) and item.line in bad and _ESCAPED.search(item.value):
            if concerns(item.name):
                yield Problem(item.line, f"the value of {item.name} is not UTF-8: not judged")
        else:
            yield item


def _not_utf8(content: bytes) -> Iterator[int]:
    """Numbers of the lines that are not UTF-8."""
    if content.isascii():
        return
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            yield number


def _first(problems: Sequence[Problem]) -> Tuple[Problem, ...]:
    """As many as a person reads."""
    left = len(problems) - PROBLEMS
    more = [Problem(problems[PROBLEMS].line, f"and {left} more like this, from here on")] if left > 0 else []
    return (*problems[:PROBLEMS], *more)


def concerns(name: str) -> bool:
    """Is it a variable that the checks of the environment are about, or one that was meant to be? Others are not kept."""
    bare = re.sub(r"^\s*(export\s+)?|\s+$", "", name)  # of an nccl.conf, whose odd lines are judged
    return bool(redact.FAMILIES.fullmatch(bare)) or variables.is_judged(bare)


# --------------------------------------------------------------------------- to facts


def facts_of(file: File, torch: Optional[Torch]) -> List[NodeFacts]:
    """The environments of a file: one, or one for each container."""
    scopes = list(dict.fromkeys(found.scope for found in file.found)) or [""]
    return [
        NodeFacts(
            name=f"{file.path} ({scope})" if scope and len(scopes) > 1 else file.path,
            how=How(via=VIA),
            env=_env(file, scope),
            torch=torch,
            reasons={name: _SILENT for name in SECTIONS if name != "env" and not (name == "torch" and torch)},
        )
        for scope in scopes
    ]


def _env(file: File, scope: str) -> Env:
    """The variables, of each name the one in force first: in nccl.conf the first, elsewhere the last."""
    by_name: Dict[str, List[Variable]] = {}
    for found in file.found:
        if found.scope == scope:
            value = redact.variable(found.name, found.value)
            by_name.setdefault(found.name, []).append(Variable(found.name, value, f"{file.path}:{found.line}"))
    order = 1 if file.nccl_conf else -1
    in_force_first = tuple(variable for values in by_name.values() for variable in values[::order])
    return Env(variables=in_force_first, nccl_conf_files=(file.path,) if file.nccl_conf else ())


class BadVersion(ValueError):
    """Not a version; the text says which."""


def versions(torch: Optional[str], nccl: Optional[str]) -> Optional[Torch]:
    """Facts of the torch that will read the variables; NCCL as told, else that of torch's wheels. Raises BadVersion."""
    for version in filter(None, (torch, nccl)):
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?([+.a-z]\w*)*", version):
            raise BadVersion(f"{version!r} is no version; expected one like 2.4 or 2.21.5")
    if torch is None and nccl is None:
        return None
    return section(Torch, _SILENT, {}, installed=True, version=torch, nccl=nccl or _nccl_of(torch or ""))


def _nccl_of(torch: str) -> Optional[str]:
    """The NCCL of the official wheels of a torch, where all of them have the same."""
    found = {build.nccl for build in compat.torch_builds(torch) if build.nccl}
    return found.pop() if len(found) == 1 else None


# --------------------------------------------------------------------------- to a report


def report(files: Sequence[File], checks: Iterable[Check], config: Config, torch: Optional[Torch]) -> Report:
    """What the checks of the environment say of the files."""
    wanted = [check for check in checks if _is_for_files(check, torch)]
    nodes = [(file, node) for file in files for node in facts_of(file, torch)]
    verdicts = [v for file in files for v in _problems(file)]
    verdicts += [v for _, node in nodes for v in engine.judge(node, wanted, config) if not _moot(v)]
    unread = [file for file in files if not file.found and any(p.kind == "unreadable" for p in file.problems)]
    status = engine.exit_status(verdicts, config.fail_on, bool(unread))
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        tool=Tool("ddp-doctor", __version__),
        nodes=tuple(Node(node.name, how=node.how, summary=_header(file, node)) for file, node in nodes),
        verdicts=tuple(verdicts),
        summary=Summary(
            headline=_headline(files, verdicts, unread),
            exit_status=status,
            counts=summary.counts(verdicts),
            next=tuple(_next(verdicts)),
            remarks=tuple(_remarks([node for _, node in nodes], config, torch)),
        ),
    )


def _is_for_files(check: Check, torch: Optional[Torch]) -> bool:
    """Is it a check of the environment that needs nothing but what a file tells?"""
    told = ("env", "policy", "torch") if torch else ("env", "policy")
    needed = [name for name, required in check.parameters.items() if required]
    ours = check.id.startswith("env/") and check.id not in _NOT_FOR_FILES
    return ours and all(name in told for name in needed)


def _moot(verdict: Verdict) -> bool:
    """Had the check nothing to look at? Most have not, and a list of those tells nothing of a file."""
    return verdict.outcome is Outcome.SKIPPED and verdict.reason is not None and verdict.reason.kind == "not-applicable"


def _problems(file: File) -> Iterator[Verdict]:
    """What could not be judged, and what is read otherwise than it seems, in the form of verdicts."""
    for problem in file.problems:
        yield Verdict(
            check=f"lint/line-{problem.kind}",
            node=file.path,
            outcome=Outcome.FAILED,
            severity=Severity.WARNING,
            subject=f"{file.path}:{problem.line}",
            message=problem.text,
        )


def _header(file: File, node: NodeFacts) -> Dict[str, str]:
    names = list(dict.fromkeys(v.name.strip() for v in (node.env.variables if node.env else None) or ()))
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return {"Read as": file.kind, "Sets": listed or "no variable of NCCL, torch, CUDA or their kin"}


def _headline(files: Sequence[File], verdicts: Sequence[Verdict], unread: Sequence[File]) -> str:
    where = files[0].path if len(files) == 1 else f"{len(files)} files"
    counting = [verdict for verdict in verdicts if verdict.counts]
    if counting:
        kinds = ((severity, sum(v.severity is severity for v in counting)) for severity in reversed(list(Severity)))
        counted = ", ".join(plural(number, severity.value) for severity, number in kinds if number)
        return f"{plural(len(counting), 'thing')} to look at in {where}: {counted}."
    if unread:
        return f"Cannot tell: nothing of {', '.join(file.path for file in unread)} could be judged."
    names = {found.name for file in files for found in file.found}
    if not names:
        return f"Nothing to judge in {where}: no variable of NCCL, torch, CUDA or their kin is set there."
    return f"Nothing to object to in {where}: {plural(len(names), 'variable')} looked at."


def _next(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Where the worst finding is explained."""
    found = sorted((-v.severity.rank, v.check) for v in verdicts if v.counts and not v.check.startswith("lint/"))
    if found:
        yield "# what a finding means, in full:"
        yield f"ddp-doctor checks {found[0][1]}"


def _remarks(nodes: Sequence[NodeFacts], config: Config, torch: Optional[Torch]) -> Iterator[str]:
    if config.source:
        yield f"configuration: {config.source}"
    found = [v for node in nodes for v in (node.env.variables if node.env else None) or ()]
    open_ = list(dict.fromkeys(f"{v.name} ({v.source})" for v in found if "$" in v.value))
    if open_:
        more = f" and {len(open_) - 8} more" if len(open_) > 8 else ""
        yield f"values that are filled in later were not judged: {', '.join(open_[:8])}{more}"
    if found and torch is None:
        yield "rules that depend on versions: --torch 2.4 or --nccl 2.20.5 says for which"
