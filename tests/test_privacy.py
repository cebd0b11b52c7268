"""What must not leave a machine: found as it is, escaped and cut, and nothing else is taken for it."""

import ast
import html
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from kernelproof import formats, privacy, records

SECRET = 'pä<s&w"rd\x01_🙂longenough'


@pytest.fixture
def set_variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    def set_one(name: str, value: str) -> None:
        monkeypatch.setenv(name, value)
        privacy.secrets.cache_clear()

    yield set_one
    monkeypatch.undo()
    privacy.secrets.cache_clear()


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr("socket.gethostname", lambda: "secret-host.example")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    monkeypatch.chdir(tmp_path)  # what is known of a process is kept by its folder


# --- names and places -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("somebody")
def test_names_and_places_go(tmp_path: Path) -> None:
    text = privacy.scrubbed(f"{tmp_path}/a.o /home/somebody/.cache secret-host.example somebody@secret-host rootless")
    assert text == "<repo>/a.o <home>/.cache <host> <user>@<host> rootless"


def test_the_interpreters_place_goes_unless_every_machine_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", "/site/project/.venv")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    text = privacy.scrubbed("-ffile-prefix-map=/site/project/.venv/lib/python3.12=x -I/usr/include")
    assert text == "-ffile-prefix-map=<prefix>/lib/python3.12=x -I/usr/include"


@pytest.mark.parametrize("home", ["/", "/root", "/tmp"])
def test_a_home_that_every_machine_has_changes_no_byte(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setenv("HOME", home)
    text = "/root/x/a.o -I/tmp/b /usr/include"
    assert privacy.scrubbed(f"{tmp_path}/c {text}") == f"<repo>/c {text}"


@pytest.fixture
def project_of_gelu() -> Iterator[None]:
    privacy.take_for_ordinary(["Gelu"])
    yield
    privacy.take_for_ordinary([])


@pytest.mark.usefixtures("project_of_gelu")
@pytest.mark.parametrize(("user", "goes"), [("gelu", False), ("bench", False), ("median", False), ("somebody", True)])
def test_a_login_name_that_is_a_word_of_the_records_is_told_by_the_home_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: str, goes: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getuser", lambda: user)
    monkeypatch.setenv("HOME", f"/nfs/{user}")
    privacy._own.cache_clear()
    text = privacy.scrubbed(f"{user}/cpu: results/{user}/cpu.json /home/{user}/a /nfs/{user}/b")
    name = "<user>" if goes else user
    assert text == f"{name}/cpu: results/{name}/cpu.json <home>/a <home>/b"
    assert privacy.cleaned({user: 1}) == {name: 1}


def test_a_boards_uuid_goes() -> None:
    assert privacy.scrubbed("on GPU-01234567-89ab-cdef-0123-456789abcdef:") == "on <gpu>:"


@pytest.mark.usefixtures("somebody")
def test_the_packer_knows_who_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    privacy.note(tmp_path)
    privacy.note(tmp_path)
    (note,) = (tmp_path / "private").glob("*.json")
    assert (tmp_path / "private/.gitignore").read_text() == "*\n"
    assert "somebody" in note.read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", "/home/packer")
    monkeypatch.setattr("socket.gethostname", lambda: "node8")
    monkeypatch.setattr("getpass.getuser", lambda: "packer")
    text = "/home/somebody/a packer@node8 somebody@secret-host"
    assert privacy.scrubbed(text) == "/home/somebody/a <user>@<host> somebody@secret-host"
    assert privacy.scrubbed(text, privacy.noted(tmp_path)) == "<home>/a <user>@<host> <user>@<host>"


def test_every_string_of_a_value_is_scrubbed(set_variable: Callable[[str, str], None]) -> None:
    @dataclass(frozen=True)
    class Inner:
        text: str
        number: float = 1.5

    set_variable("SOME_TOKEN", "s3cr3t-of-mine")
    value = {"a s3cr3t-of-mine": [Inner("s3cr3t-of-mine"), ("s3cr3t-of-mine", None)]}
    assert privacy.cleaned(value) == {"a [secret]": [Inner("[secret]"), ("[secret]", None)]}


# --- credentials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        str,
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps(json.dumps(text)),
        repr,
        ascii,
        html.escape,
        lambda text: html.escape(html.escape(text)),
        lambda text: quoteattr(text).replace("\x01", "#x01"),
        lambda text: html.escape(formats.clean(text)),
        formats.md_text,
        lambda text: text.replace('"', '""'),
        lambda text: "".join(f"&#{ord(c)};" if not c.isalnum() else c for c in text),
    ],
)
def test_a_secret_is_found_however_it_is_written(
    set_variable: Callable[[str, str], None], written: Callable[[str], str]
) -> None:
    set_variable("DB_PASSWORD", SECRET)
    text = privacy.without_secrets(f"before {written(SECRET)} after")
    assert text.strip("'\"").replace("\\", "").replace('"', "").replace("'", "") == "before [secret] after"


@pytest.mark.parametrize("end", ["", "…"])
def test_a_secret_that_was_cut_is_found(set_variable: Callable[[str, str], None], end: str) -> None:
    set_variable("DB_PASSWORD", SECRET)
    assert privacy.without_secrets(f"it says {SECRET[:-1]}{end}") == "it says [secret]"
    assert privacy.without_secrets(f"it says {SECRET[:7]}") == f"it says {SECRET[:7]}"


@pytest.mark.parametrize(
    "form",
    [
        *(f"gh{kind}_" + "a" * 36 for kind in "pousr"),
        "github_pat_" + "a_1" * 8,
        "glpat-" + "x1_-" * 5,
        "AKIA" + "0" * 16,
        "hf_" + "aB" * 17,
        "xoxb-" + "1-a" * 7,
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_a_credential_is_known_by_its_form(form: str) -> None:
    assert privacy.without_secrets(f"a {form} b") == "a [secret] b"
    assert privacy.secret_in(form.encode()) == f"{form[:4]}…"


def test_a_password_in_a_url_is_found() -> None:
    text = "git+https://alice:hunter2@host.example/x.git"
    assert privacy.without_secrets(text) == "git+https://[secret]@host.example/x.git"
    assert privacy.secret_in(text.encode()) == "a password in a URL"


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:8080/a@b",
        "https://user@host/x",
        '{"url": "http://a:80", "mail": "x@y"}',
        "https://{user}:{password}@{host}",
        "http://a:80 x@y",
    ],
)
def test_other_urls_are_left_alone(text: str) -> None:
    assert privacy.without_secrets(text) == text
    assert privacy.secret_in(text.encode()) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_KEY", "sk-0123456789abcdef"),
        ("AZURE_PAT", "abcdefgh12345678"),
        ("NPM_AUTH", "dXNlcjpwYXNz"),
        ("CHAT_WEBHOOK", "https://chat.example/services/T0/B0/xyz"),
        ("CHAT_WEBHOOK_URL", "https://chat.example/services/T0/B0/xyz"),
    ],
)
def test_a_credential_is_known_by_its_variables_name(
    set_variable: Callable[[str, str], None], name: str, value: str
) -> None:
    set_variable(name, value)
    assert privacy.without_secrets(f"a {value} b") == "a [secret] b"
    assert privacy.secret_in(value.encode()) == f"the value of the environment variable {name}"


def test_the_password_of_a_variables_url_is_a_secret(set_variable: Callable[[str, str], None]) -> None:
    set_variable("DATABASE", "postgres://me:p%40ss-word-1@db.example/x")
    assert privacy.without_secrets("p%40ss-word-1, p@ss-word-1, db.example") == "[secret], [secret], db.example"


@pytest.mark.parametrize(
    "value", ["1", "true", "ed25519", "/usr/bin/tool", "~/.ssh/id_rsa.old", "negotiate", "row_of_table", "127.0.0.1"]
)
@pytest.mark.parametrize("name", ["SORT_KEY", "GIT_AUTH", "LIB_PAT"])
def test_a_setting_is_no_credential(set_variable: Callable[[str, str], None], name: str, value: str) -> None:
    set_variable(name, value)
    assert value not in [secret.value for secret in privacy.secrets()]


def test_a_record_is_written_without_credentials(set_variable: Callable[[str, str], None], tmp_path: Path) -> None:
    set_variable("DB_PASSWORD", SECRET)
    path = tmp_path / "a.json"
    records.write(path, records.BuildRecord(operator="op", variant="plain", reason=f"it printed {SECRET}"))
    assert records.read(path, records.BuildRecord).reason == "it printed [secret]"


def test_the_module_names_no_form_that_it_finds_itself() -> None:
    source = Path(privacy.__file__).read_bytes()
    ast.parse(source)
    assert privacy.secret_in(source) is None
