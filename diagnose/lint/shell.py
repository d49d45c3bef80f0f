"""Shell scripts, profiles, batch scripts and files of NAME=value lines: what they set, without running them.

Taken: assignments, export and its like, csh's setenv, fish's set -x, env, ``srun --export=ALL,A=1`` (of #SBATCH lines too),
``mpirun -x A=1``, ``-genv A 1``, ``docker run -e A=1``, and what stands behind ``bash -c``. Left alone: here-documents,
comments, and what echo and its like print.
"""

import re
from typing import Callable, Dict, Iterator, List, NamedTuple, Sequence, Union

from ddp_doctor.lint import Found, Item, Problem

TITLE = "a shell script or a file of settings"
DEPTH = 4
"""So many ``bash -c`` within one another are followed."""


class Word(NamedTuple):
    """A word of a command, its quotes taken away."""

    line: int
    text: str


Command = List[Word]

_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t\f\v\r]|\\\n|<<<|(?!<<)[<>]+&?)+)
    |(?P<here><<-?[ \t]*["'\\]?(?P<mark>[A-Za-z_]\w*)["']?)
    |(?P<end>\n|[;&|()]+)
    |(?P<comment>\#[^\n]*)
    |(?P<word>(?:[^\s'"\\;&|()<>`]|'[^']*'|"(?:[^"\\]|\\.)*"|`[^`]*`|\\.)+)
    |(?P<stray>.)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"""\$?'([^']*)'|"((?:[^"\\]|\\.)*)"|(`)[^`]*`|\\(.)""", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_CAPITALS = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)
_SWALLOWED = re.compile(r"\n[ \t]*(?:export[ \t]+)?[A-Za-z_]\w*=", re.ASCII)
_DIRECTIVE = re.compile(r"#(?:SBATCH|PBS|FLUX:|\$)[ \t]+-.*")

_DECLARING = {"export", "declare", "typeset", "readonly", "local"}
_BEFORE = set(
    "if then else elif do while until ! { time exec nohup command sudo eval env /usr/bin/env /bin/env".split()
)
"""Words that may stand before a command or its assignments."""
_PRINTING = {"echo", "printf", "grep", "egrep", "sed", "awk", "test", "[", "[["}
_GIVEN_BY = {"-x", "-e", "--env", "-env", "-genv", "--genv"}
"""Options of mpirun, docker run and mpiexec (Hydra, Intel MPI) that take NAME=value."""
_LISTED_BY = {"--export", "-v"}
"""Options of srun, sbatch and qsub that take a list of them."""


def recognises(name: str, text: str) -> int:
    """Whatever nobody else knows: a file of settings has no mark of its own."""
    return 1


def variables(text: str) -> Iterator[Item]:
    """What the script sets, in the order of its lines."""
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        words = "the line ends as Windows writes it: a shell takes the carriage return for a part of the value"
        yield Problem(line, words, "misread")
    yield from parsed(text.replace("\r\n", "\n"), 1)


def parsed(text: str, line: int, depth: int = DEPTH) -> Iterator[Item]:
    """What a script sets that begins at ``line`` of its file."""
    for part in _Script(text, line).parts():
        if isinstance(part, Problem):
            yield part
        else:
            yield from settings(part, depth)


# --------------------------------------------------------------------------- words and commands


class _Script:
    """A script taken apart into simple commands."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.line, self.position = text, line, 0
        self.words: Command = []
        self.marks: List[str] = []
        """Words that end the here-documents which begin on the next line."""

    def parts(self) -> Iterator[Union[Command, Problem]]:
        """Commands, and problems where they stand."""
        while self.position < len(self.text):
            found = _TOKEN.match(self.text, self.position)
            assert found is not None  # noqa: S101  the last alternative takes any character
            before, self.position = self.position, found.end()
            yield from _TAKERS[str(found.lastgroup)](self, found)
            self.line += self.text.count("\n", before, self.position)
        yield self.words

    def blank(self, found: "re.Match[str]") -> Iterator[Union[Command, Problem]]:
        return iter(())

    def here(self, found: "re.Match[str]") -> Iterator[Union[Command, Problem]]:
        self.marks.append(found.group("mark"))
        return iter(())

    def comment(self, found: "re.Match[str]") -> Iterator[Union[Command, Problem]]:
        """A comment; a scheduler reads some of them."""
        directive = _DIRECTIVE.match(found.group())
        if directive and not self.words:
            self.words = [Word(self.line, word) for word in directive.group().split()]
        return iter(())

    def word(self, found: "re.Match[str]") -> Iterator[Union[Command, Problem]]:
        token = found.group()
        if _ASSIGNMENT.match(token) and _SWALLOWED.search(token):
            words = "a quote is not closed on its line, and takes the settings on the next lines into the value"
            yield Problem(self.line, words)
            self.position = self.text.index("\n", found.start())
        elif not (token.endswith("=") and self.text[self.position : self.position + 1] == "("):  # an array
            self.words.append(Word(self.line, unquoted(token)))

    def end(self, found: "re.Match[str]") -> Iterator[Union[Command, Problem]]:
        yield self.words
        self.words = []
        if found.group() == "\n":
            self._pass_here_documents()

    def stray(self, found: "re.Match[str]") -> Iterator[Union[Command, Problem]]:
        """A quote without its other half makes the command unreadable; the next line is read on."""
        if found.group() != "\\":
            yield Problem(self.line, "a quote is never closed")
            self.words = []
            after = self.text.find("\n", self.position)
            self.position = len(self.text) if after < 0 else after

    def _pass_here_documents(self) -> None:
        """Go on behind the here-documents that begin here; one without an end is taken for none."""
        for mark in self.marks:
            end = re.compile(rf"^\t*{mark}[ \t]*$", re.MULTILINE).search(self.text, self.position)
            self.position = end.end() if end else self.position
        self.marks = []


_TAKERS: Dict[str, Callable[[_Script, "re.Match[str]"], Iterator[Union[Command, Problem]]]] = {
    "blank": _Script.blank,
    "here": _Script.here,
    "comment": _Script.comment,
    "word": _Script.word,
    "end": _Script.end,
    "stray": _Script.stray,
}


def words_of(text: str, line: int = 1) -> Iterator[Union[Word, Problem]]:
    """The words of one line as a shell splits them; in place of those of an unclosed quote the problem."""
    for part in _Script(text, line).parts():
        yield from [part] if isinstance(part, Problem) else part


def split(text: str, line: int = 1) -> Command:
    """The words of one line as a shell splits them; those of an unclosed quote are missing."""
    return [word for word in words_of(text, line) if isinstance(word, Word)]


def unquoted(token: str) -> str:
    """A word without its quotes; what the shell would fill in keeps its "$"."""

    def inner(found: "re.Match[str]") -> str:
        single, double, command, escaped = found.groups()
        if command:
            return "$(...)"
        text = single if single is not None else double
        return (
            re.sub(r"\\([$`\"\\])|\\\n", r"\1", text) if double is not None else text if text is not None else escaped
        )

    return _PIECE.sub(inner, token)


# --------------------------------------------------------------------------- what a command sets


def settings(words: Sequence[Word], depth: int = DEPTH) -> Iterator[Item]:
    """What one command sets, for itself, for the script or for what it starts."""
    found = list(_set_by(words, depth))
    yield from dict.fromkeys(found)


def _set_by(words: Sequence[Word], depth: int) -> Iterator[Item]:
    yield from _spaced(words)
    yield from _leading(words)
    if _command(words) in _PRINTING:
        return
    for number, word in enumerate(words):
        following, third = (*words[number + 1 : number + 3], _NONE, _NONE)[:2]
        yield from _option(word, following, third)
        if depth and _RUN_TEXT.fullmatch(word.text) and number and _SHELL.fullmatch(words[number - 1].text):
            yield from parsed(following.text, following.line, depth - 1)
    yield from _other_shells(words)


_NONE = Word(0, "")
_RUN_TEXT = re.compile(r"-[a-z]*c")
_SHELL = re.compile(r"(.*/)?(ba|z|k|da|a)?sh")


def _command(words: Sequence[Word]) -> str:
    """The command's name, without what stands before it."""
    names = (w.text for w in words if w.text not in _BEFORE and not _ASSIGNMENT.fullmatch(w.text))
    return next(names, "")


def _leading(words: Sequence[Word]) -> Iterator[Item]:
    """A=1 B=2 command; export A=1 B C=3; env -u X A=1 command."""
    declaring = option = False
    for word in words:
        if _ASSIGNMENT.fullmatch(word.text):
            yield from _assigned(word)
        elif word.text in _DECLARING:
            declaring = True
        elif not (declaring or option or word.text in _BEFORE or word.text.startswith("-")):
            return
        option = word.text.startswith("-")


def _assigned(word: Word) -> Iterator[Item]:
    found = _ASSIGNMENT.fullmatch(word.text)
    if found:
        name, more, value = found.groups()
        yield Found(word.line, name, f"${{{name}}}{value}" if more else value)


def _option(word: Word, following: Word, third: Word) -> Iterator[Item]:
    """-x A=1, --env=A=1, -genv A 1, --export=ALL,A=1."""
    name, equals, value = word.text.partition("=")
    if name in _LISTED_BY:
        yield from _listed(Word(word.line, value)) if equals else _listed(following)
    elif name in _GIVEN_BY and equals:
        yield from _assigned(Word(word.line, value))
    elif name in _GIVEN_BY and "=" in following.text:
        yield from _assigned(following)
    elif name in ("-genv", "-env", "--genv") and _CAPITALS.fullmatch(following.text):
        yield Found(following.line, following.text, third.text)


_ITEM = re.compile(r"((?:[^,']+|'[^']*')+)(?:,|$)")


def _listed(word: Word) -> Iterator[Item]:
    """ALL,A=1,B='x,y'; a comma outside quotes begins the next variable, also in NCCL_IB_HCA=mlx5_0,mlx5_1."""
    before = ""
    for item in _ITEM.findall(word.text):
        assigned = list(_assigned(Word(word.line, item.replace("'", ""))))
        if before and not assigned and not _CAPITALS.fullmatch(item):
            words = f"the scheduler cuts the list at its commas: the value of {before} ends before the next one"
            yield Problem(word.line, words, "misread")
        yield from assigned
        before = item.partition("=")[0] if assigned else ""


def _other_shells(words: Sequence[Word]) -> Iterator[Item]:
    """csh: setenv A 1. fish: set -gx A 1."""
    texts = [word.text for word in words]
    exporting = texts[:1] == ["set"] and len(texts) > 2 and re.fullmatch(r"-\w*x\w*|--export", texts[1])
    at = 1 if texts[:1] == ["setenv"] else 2 if exporting else 0
    if at and len(texts) == at + 2 and _CAPITALS.fullmatch(texts[at]):
        yield Found(words[at].line, texts[at], texts[at + 1])


def _spaced(words: Sequence[Word]) -> Iterator[Item]:
    """NAME = value, which a shell takes for a command."""
    rest = words[1:] if words and words[0].text == "export" else words
    if len(rest) > 1 and _CAPITALS.fullmatch(rest[0].text) and rest[1].text.startswith("="):
        name = rest[0].text
        yield Problem(rest[0].line, f"there are blanks around the equals sign: this does not set {name}", "misread")
