"""The state of the repository, and the folder that a run's report goes to."""

import os
from pathlib import Path

import pytest

from kernelproof import repository
from kernelproof.processes import run


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "init.defaultBranch=main"]
    return run(["git", "-C", folder, *who, *arguments]).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("results\n")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_clean(clone: Path) -> None:
    state = repository.provenance(clone)
    head = git(clone, "rev-parse", "HEAD")
    assert (state.commit, state.branch, state.dirty, state.diff_sha256) == (head, "main", False, None)
    assert repository.folder_name(state) == head[:12]


def test_ignored_files_are_no_dirt(clone: Path) -> None:
    (clone / "results").mkdir()
    (clone / "results" / "x").write_text("x")
    assert not repository.provenance(clone).dirty


def test_what_a_run_makes_is_no_dirt_where_nobody_ignores_it(clone: Path) -> None:
    git(clone, "rm", "--quiet", ".gitignore")
    git(clone, "commit", "-m", "nothing is ignored")
    (clone / "results" / "build").mkdir(parents=True)
    (clone / "results" / "build" / "one.json").write_text("{}")
    assert not repository.provenance(clone).dirty
    (clone / "csrc" / "results").mkdir(parents=True)
    (clone / "csrc" / "results" / "kernel.cu").write_text("// of a person")
    assert repository.provenance(clone).dirty


def test_only_a_refresh_touches_the_index(clone: Path) -> None:
    index = clone / ".git" / "index"
    os.utime(clone / "a", (0, 0))  # the same bytes, so that git has to read them
    before = index.read_bytes()
    assert not repository.provenance(clone).dirty
    assert index.read_bytes() == before
    assert not repository.provenance(clone, refresh=True).dirty
    assert index.read_bytes() != before


def test_every_difference_has_its_own_name(clone: Path) -> None:
    names = set()
    for change in ("edit", "edit differently", "untracked", "untracked differently"):
        (clone / ("new" if "untracked" in change else "a")).write_text(change)
        state = repository.provenance(clone)
        assert state.dirty
        names.add(repository.folder_name(state))
    assert len(names) == 4
    assert all("-dirty-" in name for name in names)


def test_without_git(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    first = repository.provenance(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x").write_text("x")
    assert first.commit is None
    assert repository.provenance(tmp_path).diff_sha256 == first.diff_sha256
    (tmp_path / "a").write_text("b")
    assert repository.provenance(tmp_path).diff_sha256 != first.diff_sha256
    assert repository.folder_name(first).startswith("no-git-")


def test_an_empty_repository(tmp_path: Path) -> None:
    git(tmp_path, "init")
    state = repository.provenance(tmp_path)
    assert repository.folder_name(state).startswith("no-git-")
    assert state.no_commit == "a git repository without a commit"


def test_a_folder_that_another_repository_ignores_is_of_none_of_its_commits(clone: Path) -> None:
    inner = clone / "results" / "unpacked"
    inner.mkdir(parents=True)
    (inner / "kernel.cu").write_text("a")
    first = repository.provenance(inner)
    assert (first.commit, first.no_commit) == (None, "a folder that git ignores")
    (inner / "kernel.cu").write_text("b")
    assert repository.provenance(inner).diff_sha256 != first.diff_sha256


def test_a_source_that_git_ignores_is_a_change_of_the_commit(clone: Path) -> None:
    (clone / "results").mkdir()

    (clone / ".git" / "info" / "exclude").write_text("mine\n")
    for name in ("mine", "results/made"):
        (clone / name).write_text("x")
    (clone / "link").symlink_to(".")
    git(clone, "add", "link")
    git(clone, "commit", "-m", "a folder by another name")
    known = ["a", "./a", "link/a", "results/made", "<system>/ (3 headers)", "../outside.h", "kernelproof.operators.qkt"]
    assert not repository.of_files(clone, known).dirty
    first = repository.of_files(clone, ["a", "mine"])
    assert (first.commit, first.dirty) == (repository.provenance(clone).commit, True)
    (clone / "mine").write_text("y")
    assert repository.of_files(clone, ["a", "mine"]).diff_sha256 not in (None, first.diff_sha256)


def test_why_there_is_no_commit(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert repository.provenance(clone).no_commit is None
    assert repository.provenance(tmp_path_factory.mktemp("bare")).no_commit == "no git repository"
    if os.geteuid() == 0:
        for owner, said in ((12345, "another user"), (0, None)):
            os.chown(clone, owner, -1)
            os.chown(clone / ".git", owner, -1)
            why = repository.provenance(clone).no_commit
            assert said in (why or "") if said else why is None
    (clone / ".git" / "HEAD").write_text("damaged")
    assert repository.provenance(clone).no_commit == "a git repository that git does not read"


def test_git_is_not_installed(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone / "bin").mkdir()
    monkeypatch.setenv("PATH", str(clone / "bin"))
    state = repository.provenance(clone)
    assert (state.commit, state.no_commit) == (None, "git is not installed")
