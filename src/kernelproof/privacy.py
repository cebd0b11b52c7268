"""What must not leave this machine, and what takes its place in text: names, places, boards' UUIDs, credentials.

Text is scrubbed before it is escaped or cut; a credential that was escaped or cut all the same is found too. Whoever
packs a bundle need not be who measured: stages note for whom and where they ran, beside the records and in no bundle,
and the packer scrubs by every note. Credentials are noted nowhere: they go when a record or a log is written.
"""

from __future__ import annotations

import dataclasses
import functools
import getpass
import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

T = TypeVar("T")
Names = tuple[tuple[str, str], ...]  # a folder or a word, and its placeholder

PLACEHOLDERS = ("repo", "home", "prefix", "user", "host", "gpu")
SECRET = "[secret]"
NOTES = "private"  # below the results
# A word that many texts contain anyway gives nothing away and would garble them.
COMMON = {"root", "localhost", "vm", "user", "runner", "build", "test", "ubuntu", "nvidia", "gpu", ""}
COMMON |= {"kernelproof", "bench", "bundle", "capture", "profile", "report", "correct", "wrong", "crashed"}
# A home or an interpreter there says nothing of the site, and other texts name these folders too.
SHARED = {"/", "/home", "/opt", "/root", "/tmp", "/usr", "/usr/local", "/var", "/var/tmp"}
_BOARD = r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def scrubbed(text: str, names: Names = ()) -> str:
    """The text without credentials, and without who and where this process and those that `names` are of run."""
    text = without_secrets(text)
    for private in _patterns((*_own(os.getcwd()), *names)):
        text = private.in_text.sub(private.placeholder, text)
    return text


def scrubbed_markup(text: str, names: Names = ()) -> str:
    """The same for XML and HTML, where a placeholder must not read as a tag."""
    return re.sub(rf"<({'|'.join(PLACEHOLDERS)})>", r"&lt;\1&gt;", scrubbed(text, names))


def scrubbed_in_place(data: bytes) -> bytes:
    """For binary data whose lengths are part of its format: names and places are overwritten, not replaced."""
    text = data.decode("latin-1")
    for private in _patterns(_own(os.getcwd())):
        text = private.in_binary.sub(private.of_same_length, text)
    return text.encode("latin-1")


def cleaned(value: T, names: Names = ()) -> T:
    """The same value with every string in it scrubbed."""
    return each_text(value, lambda text: scrubbed(text, names))


def each_text(value: T, change: Callable[[str], str]) -> T:
    """The same containers and dataclasses with every string in them changed, keys of dictionaries too."""
    change = functools.cache(change)  # most strings of a record are its keys, again and again

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {changed(key): changed(item) for key, item in value.items()}
        if isinstance(value, list | tuple | frozenset):
            return type(value)(map(changed, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: changed(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return dataclasses.replace(value, **fields)
        return value

    return changed(value)  # type: ignore[no-any-return]


# --- names and places -------------------------------------------------------------------------------------------------


def note(results: Path) -> None:
    """Leave this process's names and places beside the records, for whoever packs them."""
    text = json.dumps(dict(_own(os.getcwd())), indent=1)
    path = results / NOTES / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / ".gitignore").write_text("*\n")
        whole = path.with_suffix(f".{socket.gethostname()}.{os.getpid()}")
        whole.write_text(text, encoding="utf-8")
        os.replace(whole, path)


def noted(results: Path) -> Names:
    """The names and places of all who measured what lies in `results`."""
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((results / NOTES).glob("*.json"))]
    return tuple(dict(pair for each in notes for pair in each.items()).items())


@dataclass(frozen=True)
class _Private:
    """Something that must not leave this machine: patterns for it and what takes its place."""

    in_text: re.Pattern[str]
    in_binary: re.Pattern[str]  # a protobuf string may be followed by a byte that reads as a letter
    placeholder: str

    def of_same_length(self, found: re.Match[str]) -> str:
        """What overwrites a match: the placeholder, cut or filled up."""
        return self.placeholder.ljust(len(found[0]), "_")[: len(found[0])]


@functools.cache
def _own(here: str) -> Names:
    """This process's, in the working folder `here`."""
    host, user, home = socket.gethostname(), _user(), os.path.expanduser("~")
    places = [(home, "<home>"), *([(f"/home/{user}", "<home>")] if user else [])]
    prefixes = {path for prefix in (sys.prefix, sys.base_prefix) for path in (prefix, os.path.realpath(prefix))}
    places += [(path, "<prefix>") for path in sorted(prefixes)]
    places = [(path, name) for path, name in places if path and path not in SHARED]
    places = [*((path, "<repo>") for path in (here, os.path.realpath(here)) if len(path) > 1), *places]
    words = [(host, "<host>"), (host.split(".")[0], "<host>"), (user, "<user>")]
    words = [(word, name) for word, name in words if len(word) > 2 and not _is_ordinary(word.lower())]
    return tuple(dict(reversed([*places, *words])).items())  # of two meanings the first


def take_for_ordinary(words: Iterable[str]) -> None:
    """These are names of the project: of who bears one, too, only the home folder is replaced.

    Else a login name that is an operator's would be taken out of every record and page, and out of paths in them.
    """
    _of_the_project.clear()
    _of_the_project.update(word.lower() for word in words)
    _own.cache_clear()


_of_the_project: set[str] = set()


def _is_ordinary(word: str) -> bool:
    return word in COMMON or word in _of_the_project or word in _of_records()


@functools.cache
def _of_records() -> frozenset[str]:
    """The words of which the names of records' fields are made, keys of their JSON."""
    from kernelproof import records

    kinds = [kind for kind in vars(records).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    names = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    return frozenset(word for name in names for word in (name, *name.split("_")))


@functools.cache
def _patterns(names: Names) -> tuple[_Private, ...]:
    """Of folders before words, and of the longer before what it begins with."""
    ordered = sorted(dict(reversed(names)).items(), key=lambda pair: (not pair[0].startswith("/"), -len(pair[0])))
    found = [(re.escape(name) if name[0] == "/" else rf"(?<![\w-]){re.escape(name)}", to) for name, to in ordered]
    return tuple(
        _Private(re.compile(rf"{pattern}(?![\w-])"), re.compile(pattern), to)
        for pattern, to in [(_BOARD, "<gpu>"), *found]
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry in /etc/passwd
        return ""


# --- credentials ------------------------------------------------------------------------------------------------------

MIN_LENGTH = 8  # of a variable's value: a shorter one would be found everywhere
# Names that are a credential's, and names that may be a setting's as well.
_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|_WEBHOOK(_URL)?$", re.I)
_VAGUE_NAMES = re.compile(r"_(PAT|AUTH|KEY|PASS)$", re.I)
_WORD = r"(?:[A-Z]?[a-z]+|[A-Z]+)"
_SETTING = re.compile(rf"[/~.].*|[\d.,:]+|(?=.{{,24}}$){_WORD}(?:[ _.-]{_WORD})*")  # a path, a number, words
_IN_URL = r"(?<=://)[^\s/:@\"'<>{}$]*:(?P<password>[^\s/@\"'<>{}$]+)(?=@)"
_FORMS = (
    r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|AKIA[0-9A-Z]{16}|hf_[A-Za-z]{34}"
    rf"|xox[baprs]-[\w-]{{20,}}|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----|{_IN_URL}"
)
_FORMS_IN_TEXT, _FORMS_IN_BYTES = re.compile(_FORMS), re.compile(_FORMS.encode())
# One of these is in whatever has such a form; most files hold none, which is found out in a tenth of the time.
_MARKS = (
    *(b"gh%c_" % kind for kind in b"pousr"),
    b"github_pat_",
    b"glpat-",
    b"AKIA",
    b"hf_",
    b"xox",
    b"-----BEGIN ",
    b"://",
)
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_SHORT_ESCAPES = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}


def without_secrets(text: str) -> str:
    """The text without values of variables that hold a credential, and without what has the form of one."""
    for secret in secrets():
        text = secret.anyhow.sub(SECRET, text)
        start = text.rfind(secret.value[:MIN_LENGTH])
        if start >= 0 and secret.value.startswith(text[start:].rstrip("…")):  # cut before it came here
            text = text[:start] + SECRET
    return _FORMS_IN_TEXT.sub(SECRET, text)


def secret_in(data: bytes) -> str | None:
    """What kind of credential the bytes hold, without the credential itself."""
    for secret in secrets():
        if secret.value.encode("utf-8", "surrogateescape") in data:
            return f"the value of the environment variable {secret.name}"
    if any(mark in data for mark in _MARKS) and (found := _FORMS_IN_BYTES.search(data)):
        return "a password in a URL" if found["password"] else f"{found[0][:4].decode()}…"
    return None


@dataclass(frozen=True)
class Secret:
    """The value of an environment variable that holds a credential; `anyhow` finds it escaped too."""

    name: str
    value: str
    anyhow: re.Pattern[str]


@functools.cache
def secrets() -> tuple[Secret, ...]:
    """This process's, the longest first."""
    found = {value: name for name, text in sorted(os.environ.items()) for value in _credentials(name, text)}
    return tuple(
        Secret(name, value, re.compile("".join(map(_escaped, value))))
        for value, name in sorted(found.items(), key=lambda item: (-len(item[0]), item[0]))
        if len(value) >= MIN_LENGTH
    )


def _credentials(name: str, value: str) -> Iterator[str]:
    """A variable's value if it is a credential, and passwords of URLs in it."""
    if _NAMES.search(name) or (_VAGUE_NAMES.search(name) and not _SETTING.fullmatch(value)):
        yield value
    for found in re.finditer(_IN_URL, value):
        yield found["password"]
        yield unquote(found["password"])


def _escaped(character: str) -> str:
    """A pattern for a character of a secret as it is and as JSON, Python, HTML, XML, CSV or Markdown write it."""
    if character.isascii() and character.isalnum():
        return character
    number = ord(character)
    units = character.encode("utf-16-be", "surrogatepass").hex()
    forms = [
        rf"\\{{0,4}}{re.escape(character)}",
        "".join(rf"\\{{1,4}}u(?i:{units[i : i + 4]})" for i in range(0, len(units), 4)),
        rf"\\{{1,4}}(?i:x{number:02x}|U{number:08x})",
        rf"&(?:amp;)*\#0*(?:{number}|(?i:x0*{number:x}));",
        rf"\#x(?i:{number:02x})",  # pytest's XML
    ]
    if name := _ENTITIES.get(character):
        forms.append(rf"&(?:amp;)*{name};")
    if character == '"':
        forms.append('""')  # CSV
    if letter := _SHORT_ESCAPES.get(character):
        forms.append(rf"\\{{1,4}}{letter}")
    return f"(?:{'|'.join(forms)}{'' if character.isprintable() else '|�'})"
