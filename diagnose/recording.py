"""Recordings: what went through the door, written as regular files and one index, and a door that leads to them.

A recording is a folder, or the same as a tar.gz:

    index.json      {"format": 1, "complete": false, "entries": {"read /proc/meminfo": {...}, ...}}
    root/PATH       the text of a file that was read
    run/NAME.json   what a command did: {"status": 0, "stdout": "...", "stderr": ""}
    ask/NAME.json   what a library call answered

An entry is ``{"value": ...}``, ``{"file": "root/proc/meminfo"}`` or ``{"reason": {"kind": ..., "text": ...}}``. In a
recording that is ``complete`` (written by hand for tests) what has no entry is looked for in the folders, and what is
not there does not exist; otherwise it is "not recorded".
"""

import io
import json
import math
import os
import stat as stat_module
import tarfile
from dataclasses import fields
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddp_doctor import given
from ddp_doctor.ask import Ask, over
from ddp_doctor.facts import Reason
from ddp_doctor.host import Host, Ran, Stat, StatVfs
from ddp_doctor.unreadable import Unreadable

FORMAT = 1
UNPACKED_LIMIT_BYTES = 256 * 2**20
"""A bundle is a few MB; more than this is not one of ours."""

Entry = Dict[str, Any]


class BadRecording(Exception):
    """The file or folder is not a recording that can be replayed; the text says why."""


class Recorder(Host):
    """A door that notes everything that goes through it in ``entries``."""

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self.entries: Dict[str, Entry] = {}

    def _door(self, op: str, key: str, live: Callable[[], Any]) -> Any:
        try:
            value = super()._door(op, key, live)
        except Unreadable as error:
            self.entries[f"{op} {key}"] = {"reason": {"kind": error.reason.kind, "text": error.reason.text}}
            raise
        self.entries[f"{op} {key}"] = {"value": value}
        return value


class Recording(Host):
    """A door that leads to a recording; nothing on this machine is looked at."""

    def __init__(self, entries: Dict[str, Entry], files: Dict[str, str], complete: bool = False) -> None:
        super().__init__()
        self.entries, self.files, self.complete = entries, files, complete

    def _door(self, op: str, key: str, live: Callable[[], Any]) -> Any:
        entry = self.entries.get(f"{op} {key}") or self._by_hand(op, key)
        if "reason" in entry:
            raise Unreadable(Reason(str(entry["reason"]["kind"]), str(entry["reason"]["text"])))
        try:
            value = _value(op, entry, self.files)
        except (ValueError, RecursionError):  # not JSON any more
            value = None
        if not _SHAPES.get(op, _is_anything)(value):
            raise Unreadable(Reason("unreadable", f"{key or op}: damaged in this recording"))
        return value

    def asked(self, ask: Ask) -> Ask:
        """What was asked when the recording was made; what ``ask`` says otherwise wins."""
        try:
            return over(self._door("asked", "", dict), ask)
        except Unreadable:
            return ask

    def inlined(self) -> Dict[str, Entry]:
        """The entries with the content of their files in them, to be written as another bundle. Raises BadRecording."""
        try:
            return {
                name: entry if "reason" in entry else {"value": _value(name.split(" ", 1)[0], entry, self.files)}
                for name, entry in self.entries.items()
            }
        except (ValueError, RecursionError) as error:
            raise BadRecording(f"damaged recording: {error}") from None

    def _by_hand(self, op: str, key: str) -> Entry:
        """What a complete recording's folders say; otherwise "not recorded"."""
        if not self.complete:
            return {"reason": {"kind": "not-recorded", "text": f"{key or op}: not in this recording"}}
        path = (
            "root" + os.path.normpath("/" + key.lstrip("/"))
            if op in ("read", "list", "stat", "realpath")
            else f"{op}/{key}.json"
        )
        if op in ("read", "run", "ask") and path in self.files:
            return {"file": path}
        if op == "realpath":
            return {"value": key}
        names = sorted(
            {f[len(path) + 1 :].split("/")[0] for f in self._paths() if f.startswith(path.rstrip("/") + "/")}
        )
        if op == "list" and names:
            return {"value": names}
        if op == "stat" and (names or path in self._paths()):
            return {"value": _plain_stat("directory" if names else "file")}
        return {"reason": {"kind": "absent", "text": f"{key}: No such file or directory"}}

    def _paths(self) -> Tuple[str, ...]:
        """Everything that exists: files, and what an entry speaks of (links, devices, unreadable files)."""
        spoken = (k.split(" ", 1) for k, e in self.entries.items() if e.get("reason", {}).get("kind") != "absent")
        return (*self.files, *("root" + key for op, key in spoken if op in ("read", "link", "stat")))


def _value(op: str, entry: Entry, files: Dict[str, str]) -> Any:
    if "file" not in entry:
        return entry["value"]
    text = files[entry["file"]]
    return text if op == "read" else json.loads(text)


def _is_anything(_value: Any) -> bool:
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_text, value))


def _is(kind: Any) -> Callable[[Any], bool]:
    """Does a value have the fields of the dataclass ``kind``, no more, and of their types?"""
    types: Dict[str, Any] = {field.name: field.type for field in fields(kind)}
    return lambda value: (
        isinstance(value, dict)
        and set(value) == set(types)
        and all(isinstance(value[name], type) for name, type in types.items())
    )


_SHAPES: Dict[str, Callable[[Any], bool]] = {
    "read": _is_text,
    "link": _is_text,
    "realpath": _is_text,
    "list": _are_texts,
    "resolve": _are_texts,
    "stat": _is(Stat),
    "statvfs": _is(StatVfs),
    "run": _is(Ran),
    "env": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "now": lambda value: isinstance(value, (int, float)) and math.isfinite(value),
    "python": lambda value: isinstance(value, str),
    "user": lambda value: isinstance(value, (list, tuple)) and [type(part) for part in value] == [int, str],
}
"""What a recording must hold for each call through the door; what a library answered is its collector's affair."""


def _plain_stat(kind: str) -> Dict[str, Any]:
    mode = 0o755 if kind == "directory" else 0o644
    return {"kind": kind, "mode": mode, "uid": 0, "gid": 0, "size_bytes": 0, "readable": True, "writable": True}


def texts_with_names(entries: Dict[str, Entry]) -> List[str]:
    """Texts of a recording that name other machines: /etc/hosts."""
    return [str(entries[name]["value"]) for name in ("read /etc/hosts",) if "value" in entries.get(name, {})]


def pack(entries: Dict[str, Entry]) -> Dict[str, bytes]:
    """Lay entries out as files: name -> content. Names that would clash or escape stay in the index."""
    files: Dict[str, bytes] = {}
    index: Dict[str, Entry] = {}
    for name, entry in sorted(entries.items()):
        place = _place(*name.split(" ", 1))
        if "value" in entry and place and place not in files and not _is_folder_of(place, files):
            files[place] = _content(place, entry["value"])
            index[name] = {"file": place}
        else:
            index[name] = entry
    document = {"format": FORMAT, "complete": False, "entries": index}
    return {"index.json": _content("index.json", document), **files}


def _place(op: str, key: str) -> Optional[str]:
    """File of an entry in the bundle, or None where it belongs in the index."""
    path = {
        "read": "root" + os.path.normpath("/" + key.lstrip("/")),
        "run": f"run/{key}.json",
        "ask": f"ask/{key}.json",
    }.get(op)
    if path is None or len(path) > 240 or not path.isprintable() or ".." in path.split("/"):
        return None
    return path


def _is_folder_of(place: str, files: Dict[str, bytes]) -> bool:
    parents = (place.rsplit("/", n)[0] for n in range(1, place.count("/") + 1))
    return any(parent in files for parent in parents) or any(f.startswith(place + "/") for f in files)


def _content(place: str, value: Any) -> bytes:
    if place.startswith("root/"):
        return str(value).encode("utf-8", "backslashreplace")
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_bundle(entries: Dict[str, Entry], path: str) -> None:
    """Write a recording as tar.gz of regular files. Raises OSError."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in pack(entries).items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))


def open_recording(path: str) -> Recording:
    """Open a recording, a folder or a tar.gz; nothing is unpacked to disk. Raises BadRecording."""
    try:
        files = _folder(path) if os.path.isdir(path) else _archive(path)
        index = json.loads(files.pop("index.json"))
    except KeyError:
        raise BadRecording(f"{path}: no index.json in it: not a ddp-doctor recording") from None
    except OSError as error:
        raise BadRecording(f"{path}: {error.strerror or error}") from None
    except (EOFError, tarfile.TarError, ValueError, RecursionError) as error:
        raise BadRecording(f"{path}: cannot be read as a recording: {error}") from None
    return _checked(path, index, files)


def _checked(path: str, index: Any, files: Dict[str, str]) -> Recording:
    """Refuse an index of another format, or one whose entries are not of the shape that ``_door`` expects."""
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        found = index.get("format") if isinstance(index, dict) else type(index).__name__
        raise BadRecording(f"{path}: recording format {found!r}, this ddp-doctor reads {FORMAT}")
    entries = index.get("entries", {})
    for name, entry in entries.items() if isinstance(entries, dict) else [("entries", None)]:
        if not isinstance(entry, dict) or not _is_sound(entry, files):
            raise BadRecording(f"{path}: broken entry {name!r} in index.json")
    return Recording(entries, files, complete=index.get("complete") is True)


def _is_sound(entry: Entry, files: Dict[str, str]) -> bool:
    reason = entry.get("reason")
    if reason is not None:
        return isinstance(reason, dict) and "kind" in reason and "text" in reason
    return entry.get("file") in files if "file" in entry else "value" in entry


def _folder(path: str) -> Dict[str, str]:
    """Read the regular files of a folder into memory; of one without an index nothing (KeyError)."""
    if not os.path.isfile(os.path.join(path, "index.json")):
        raise KeyError("index.json")
    files, left = {}, UNPACKED_LIMIT_BYTES
    for folder, _, names in os.walk(path):
        for name in names:
            full = os.path.join(folder, name)
            if stat_module.S_ISREG(os.lstat(full).st_mode):
                with open(full, "rb") as file:
                    content = file.read(left + 1)
                left -= len(content)
                if left < 0:
                    raise BadRecording(f"{path}: holds more than {UNPACKED_LIMIT_BYTES >> 20} MiB")
                files[os.path.relpath(full, path)] = content.decode("utf-8", "backslashreplace")
    return files


def _archive(path: str) -> Dict[str, str]:
    """Read the regular files of a tar.gz into memory, refusing members that would not be ours."""
    files, total = {}, 0
    packed = io.BytesIO(given.content(path, UNPACKED_LIMIT_BYTES))
    with tarfile.open(fileobj=packed, mode="r:gz") as tar:
        for member in tar:
            if not member.isreg() or member.name.startswith("/") or ".." in member.name.split("/"):
                raise BadRecording(f"{path}: unsafe member {member.name!r}: not a ddp-doctor bundle")
            total += member.size
            if total > UNPACKED_LIMIT_BYTES:
                raise BadRecording(f"{path}: unpacks to more than {UNPACKED_LIMIT_BYTES >> 20} MiB")
            content = tar.extractfile(member)
            files[member.name] = content.read().decode("utf-8", "backslashreplace") if content else ""
    return files
