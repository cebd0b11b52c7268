"""What state the repository is in: commit, dirt, and the name of the folder that a run's report goes to."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from kernelproof import RUN_STATE, __version__
from kernelproof.errors import ConfigError, ToolError, guide
from kernelproof.processes import run
from kernelproof.records import Provenance, sha256_file

SNAKEFILES = ("Snakefile", "snakefile", "workflow/Snakefile", "workflow/snakefile")  # where snakemake looks

HERE = "/proc/self/cwd/"  # the repository as its builds see it: the same text wherever it lies

# What a run makes: neither part of what is measured nor a reason to measure again.
GENERATED = (
    "results",
    "reports",
    ".venv",
    ".snakemake",
    "__pycache__",
    ".git",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
)


def has_snakefile() -> bool:
    """Whether snakemake finds a workflow in this folder by itself."""
    return any(Path(name).is_file() for name in SNAKEFILES)


def check_folder(*, snakefile: bool = True, configuration: bool = True) -> None:
    """Whether a run can begin and end in this folder, asked before it makes anything there.

    `snakefile`, `configuration`: whether those have to be here. Raises ConfigError or ToolError.
    """
    here = str(Path.cwd())  # for who typed the command, and in no record or log
    if snakefile and not has_snakefile():
        hint = (
            "run in a clone of kernelproof, or name the clone's: kernelproof run -- --snakefile CLONE/Snakefile "
            f"--configfile FILE; {guide('how-to/own-repository.md')}"
        )
        raise ConfigError("there is no Snakefile here, hence no workflow to run", subject=here, hint=hint)
    if configuration and not Path("config.yaml").is_file():
        hint = "name another file: kernelproof run -- --configfile FILE (`kernelproof init` makes one)"
        raise ConfigError("there is no config.yaml here", subject=here, hint=hint)
    for folder, lost in ((Path("results"), "no record can be kept"), (Path("reports"), "no report can be written")):
        why = why_no_folder(folder)
        try:
            if not why:
                with tempfile.TemporaryFile(dir=folder if folder.exists() else Path()):
                    pass
        except OSError as error:
            why = error.strerror
        if why:
            raise ToolError(f"{lost}: {why}", subject=f"{folder}/", hint="make it a folder that you may write to")


def why_no_folder(path: Path) -> str | None:
    """Why no folder can be made where something is already, which the system calls `File exists`; else None."""
    if path.is_symlink() and not path.exists():
        return f"it is a link to {os.readlink(path)}, which is not there"
    return os.strerror(errno.ENOTDIR) if path.exists() and not path.is_dir() else None


def utc_now() -> str:
    """The present time in UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def provenance(root: Path, *, refresh: bool = False) -> Provenance:
    """The repository's state and the time. Without git, a repository or a commit, the commit is None.

    `refresh`: git may note in its index which files it has found unchanged, as it does for a person. In a fresh clone
    it reads them all, every time, until it has.
    """
    found = Provenance(utc=utc_now(), kernelproof=__version__)
    head = _git(root, "log", "-1", "--format=%H%x00%cd%x00%D", "--date=format-local:%Y-%m-%dT%H:%M:%SZ")
    below = (_git(root, "rev-parse", "--show-prefix") or "").strip()  # where below a repository's top, if it is
    if head is None or (below and not not_ignored(root)):
        found.no_commit = "a folder that git ignores" if head and below else _why_no_commit(root)
        found.diff_sha256 = tree_sha256(root)
        return found
    found.commit, found.commit_utc, refs = head.strip().split("\0")
    found.branch = next((ref.removeprefix("HEAD -> ") for ref in refs.split(", ") if ref.startswith("HEAD -> ")), None)
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "-z", locks=refresh) or ""
    changes = "\0".join(entry for entry in status.split("\0") if not _made_by_a_run(entry))
    if changes:
        found.dirty = True
        found.diff_sha256 = _diff_sha256(root, changes)
    return found


def of_files(root: Path, names: Iterable[str]) -> Provenance:
    """The present state of what was made of these files: one that git ignores is in no commit, and a change of it.

    Of a run's own products and of files outside the repository, a system's say, nothing is asked.
    """
    state, top = provenance(root), root.resolve()
    resolved = {name: (root / name).resolve() for name in names if Path(name).parts[0] not in GENERATED}
    ours = {name: there for name, there in resolved.items() if there.is_relative_to(top) and there.is_file()}
    tracked = not_ignored(root) if state.commit and ours else None
    if tracked is None:
        return state
    # git names a link, or what it leads to
    known = {name: {os.path.normpath(name), str(there.relative_to(top))} for name, there in ours.items()}
    ignored = {name: sha256_file(ours[name]) for name in ours if not known[name] & tracked}
    if ignored:
        state.dirty = True
        state.diff_sha256 = hashlib.sha256(json.dumps([state.diff_sha256, ignored]).encode()).hexdigest()
    return state


def begin_run(root: Path) -> None:
    """Take down the state for the stages of a run, which inherit our environment."""
    os.environ[RUN_STATE] = json.dumps(dataclasses.asdict(provenance(root, refresh=True)))


def of_run(root: Path) -> Provenance:
    """The state in which the run began that we are a part of; the present one where we are of none."""
    if said := os.environ.get(RUN_STATE):
        return Provenance(**json.loads(said))
    return provenance(root)


def folder_name(state: Provenance) -> str:
    """`<commit>`, `<commit>-dirty-<hash of the difference>` or `no-git-<hash of the tree>`."""
    if state.commit is None:
        return f"no-git-{(state.diff_sha256 or '')[:8]}"
    if state.dirty:
        return f"{state.commit[:12]}-dirty-{(state.diff_sha256 or '')[:8]}"
    return state.commit[:12]


def tree_sha256(root: Path) -> str:
    """One hash over the paths and bytes of all files below root, without what a run makes."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in GENERATED)
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                digest.update(f"{path.relative_to(root)}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def not_ignored(root: Path) -> set[str] | None:
    """Every file that git tracks or would, by path from the root, submodules gone into; None without git."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        return None
    found: set[str] = set()
    for path in filter(None, listed.split("\0")):
        if (root / path / ".git").exists():
            found |= {os.path.join(path, below) for below in not_ignored(root / path) or ()}
        else:
            found.add(path)
    return found


def _made_by_a_run(entry: str) -> bool:
    """Whether an entry of git's status is an untracked file below a folder that a run makes."""
    return entry.startswith("?? ") and Path(entry[3:]).parts[0] in GENERATED


def _diff_sha256(root: Path, changes: str) -> str:
    digest = hashlib.sha256((_git(root, "diff", "HEAD", "--binary", "--no-ext-diff") or "").encode())
    for entry in sorted(changes.split("\0")):
        path = root / entry[3:]
        if entry.startswith("?? ") and path.is_file():
            digest.update(f"{entry[3:]}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def _why_no_commit(root: Path) -> str:
    if shutil.which("git") is None:
        return "git is not installed"
    if _git(root, "rev-parse", "--git-dir") is not None:
        return "a git repository without a commit"
    above = (root.absolute(), *root.absolute().parents)
    if clone := next((folder for folder in above if (folder / ".git").exists()), None):
        if clone.stat().st_uid != os.geteuid():
            return "a git repository of another user, which git does not read (`git status` says how to trust it)"
        return "a git repository that git does not read"
    return "no git repository"


def _git(root: Path, *arguments: str, locks: bool = False) -> str | None:
    environment = {**os.environ, "TZ": "UTC0", "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": str(int(locks))}
    try:
        done = run(["git", "-C", root, *arguments], check=False, env=environment, timeout_s=60)
    except ToolError:
        return None
    return done.stdout if done.returncode == 0 else None
