"""Escaping: host names, log lines and tool output are hostile; nothing of them reaches a terminal, HTML or XML raw."""

import html as _html
import re
import shlex
import unicodedata

_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode general categories: controls (ANSI escapes begin with one), format characters (bidi overrides, zero width),
lone surrogates, line and paragraph separators."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]|~$]|^[#>+-]|(?<=^\d)[.)](?= ))")
"""What means something in GitHub-flavoured Markdown; $ begins a formula, some only at the beginning of a line."""


def terminal(text: str) -> str:
    r"""Return ``text`` on one line: what moves a cursor, hides or reorders text is written as \\n, \\x1b or \\u202e."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if unicodedata.category(character) in _UNSAFE_CATEGORIES or _is_noncharacter(ord(character)):
        return character.encode("unicode_escape").decode("ascii")
    return character


def _is_noncharacter(code: int) -> bool:
    """U+FFFE, U+FFFF of every plane and U+FDD0..FDEF: never text, and the first two may not stand in XML 1.0."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def lines(text: str) -> str:
    """Like ``terminal``, but line ends stay: for the content of a file or a message of several lines."""
    return "\n".join(terminal(line.replace("\t", "    ")) for line in text.split("\n"))


def carried(text: str, encoding: str) -> str:
    r"""Write what ``encoding`` cannot carry as \\xe9 or \\u2265; an unknown encoding carries ASCII alone."""
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.encode("ascii", "backslashreplace").decode("ascii")


def html(text: str) -> str:
    """Text for HTML and for attribute values."""
    return _html.escape(terminal(text), quote=True)


def xml(text: str) -> str:
    """Characters that XML 1.0 and a reader's terminal bear, line ends kept; markup is escaped by the XML writer."""
    return lines(text)


def markdown(text: str) -> str:
    """Text for Markdown, in a table cell too: neither markup, HTML nor a cell border of it is left."""
    return _MARKDOWN.sub(r"\\\1", terminal(text)).replace("&", "&amp;").replace("<", "&lt;")


def fenced(text: str, language: str = "") -> str:
    """A Markdown code block; its fence is longer than any run of backticks in the text."""
    runs = re.findall(r"`+", text)
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))
    return f"{fence}{language}\n{lines(text)}\n{fence}"


def export(name: str, value: str) -> str:
    """An export line for sh, bash and zsh, which expands a word that begins with "="."""
    quoted = shlex.quote(value)
    return f"export {name}={repr(value) if quoted == value and value.startswith('=') else quoted}"
