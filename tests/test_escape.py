"""Escaping of hostile text."""

import subprocess
from xml.etree import ElementTree

import pytest
from ddp_doctor import escape
from hypothesis import given
from hypothesis import strategies as st

ANY = st.text(alphabet=st.characters())  # with lone surrogates and noncharacters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00e9 \u2265 \u65e5\u672c", "plain \u00e9 \u2265 \u65e5\u672c"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b31m", r"\x9b31m"),  # C1 control: begins an escape sequence too
        ("user\u202egnp.exe\u2066", r"user\u202egnp.exe\u2066"),
        ("zero\u200bwidth\u2028", r"zero\u200bwidth\u2028"),
        ("\udcff\ufffe\U0001ffff", r"\udcff\ufffe\U0001ffff"),
    ],
)
def test_terminal(text, shown):
    assert escape.terminal(text) == shown
    assert escape.terminal(shown) == shown


@pytest.mark.parametrize(
    ("text", "encoding", "carried"),
    [
        ("caf\u00e9 \u2265", "ascii", r"caf\xe9 \u2265"),
        ("caf\u00e9 \u2265", "latin-1", "caf\u00e9 \\u2265"),
        ("caf\u00e9", "no-such-encoding", r"caf\xe9"),
    ],
)
def test_carried(text, encoding, carried):
    assert escape.carried(text, encoding) == carried


@given(ANY)
def test_xml_is_well_formed_and_utf8(text):
    element = ElementTree.Element("a", b=escape.xml(text))
    element.text = escape.xml(text)
    read = ElementTree.fromstring(ElementTree.tostring(element, encoding="utf-8"))
    assert (read.text or "") == escape.xml(text)


@given(ANY)
def test_html_holds_no_markup(text):
    assert not set(escape.html(text)) & set("<>\"'\x1b\u202e")


@pytest.mark.parametrize(
    "text", ["<script>", "a|b", "[x](y)", "![i](u)", "`id`", "**b**", "# h", "- l", "&lt;", "~~s~~", "$x$"]
)
def test_markdown_keeps_no_markup(text):
    escaped = escape.markdown(text)
    assert "<" not in escaped
    bare = escaped.replace("&amp;", "").replace("&lt;", "")
    assert all(bare[i - 1] == "\\" for i, c in enumerate(bare) if c in "|[]`*~$")
    assert escaped[0] not in "#>+-"


@pytest.mark.parametrize("text", ["plain", "```\n# out", "````"])
def test_a_fence_is_not_closed_from_within(text):
    first, *body, last = escape.fenced(text).splitlines()
    assert first == last
    assert not any(line.startswith(first) for line in body)


@pytest.mark.parametrize("value", ["=enp3s0,eno1", "^docker", "a b", "$(id)", "it's", ""])
def test_export_gives_the_value_to_a_shell(value):
    script = escape.export("NCCL_X", value) + '; printf %s "$NCCL_X"'
    assert subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, text=True).stdout == value


def test_export_quotes_what_zsh_would_expand():
    assert escape.export("NCCL_SOCKET_IFNAME", "=enp3s0") == "export NCCL_SOCKET_IFNAME='=enp3s0'"
