"""Which of a project's own files an operator's module is made of."""

from pathlib import Path

import pytest
from test_cases import variant

from kernelproof import build, operators, own_modules
from kernelproof.workflow import module_digest, module_files

OPERATOR = """
import torch, kit.numbers
from shapes import SIZES
def late():
    from mine import deep
class Op:
    name = "op"
OPERATOR = Op()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("mine", "kit"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "mine" / "op.py").write_text(OPERATOR)
    (tmp_path / "mine" / "deep.py").write_text(
        "from . import deeper as d\nfrom .deeper import X\nfrom .. import above\n"
    )
    (tmp_path / "mine" / "deeper.py").write_text("X = 1\n")
    (tmp_path / "mine" / "nobodys.py").touch()
    (tmp_path / "kit" / "numbers.py").touch()
    (tmp_path / "shapes.py").write_text("import broken\nSIZES = 1\n")
    (tmp_path / "broken.py").write_text("def :\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


READ = ["broken.py", "kit/__init__.py", "kit/numbers.py", "mine/__init__.py", "mine/deep.py", "mine/deeper.py"]
READ += ["mine/op.py", "shapes.py"]


@pytest.mark.parametrize("module", ["mine.op", "mine/op.py", "./mine/op.py"])
def test_what_a_module_imports_is_of_it_and_nothing_else(module: str, project: Path) -> None:
    assert own_modules.file_of(module, project) == "mine/op.py"
    assert own_modules.files_of(module, project) == READ
    assert set(READ) < set(module_files("test", module))


@pytest.mark.parametrize("changed", ["mine/op.py", "mine/deeper.py", "shapes.py"])
@pytest.mark.parametrize("module", ["mine.op", "mine/op.py"])
def test_a_record_grows_old_by_every_file_of_its_operator(module: str, changed: str, project: Path) -> None:
    from kernelproof import workflow

    before = module_digest("test", module)
    (project / changed).write_text("# another\n")
    workflow.module_digest.cache_clear()
    workflow._sha256.cache_clear()
    assert module_digest("test", module) != before


@pytest.mark.parametrize("module", ["kernelproof.operators.attention", "torch.nn", "nowhere.op"])
def test_what_is_not_the_projects_has_no_file_of_it(module: str, project: Path) -> None:
    assert own_modules.file_of(module, project) is None
    assert own_modules.files_of(module, project) == []


def test_a_module_given_as_a_path_imports_what_lies_beside_it_and_from_the_root(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "beside_op.py").write_text("NAME = 'op'\n")
    (tmp_path / "of_the_root.py").write_text("DIMS = {'size': None}\n")
    (tmp_path / "ops" / "op.py").write_text("from beside_op import NAME\nfrom of_the_root import DIMS\n")
    loaded = operators._import("ops/op.py", tmp_path)
    assert (loaded.NAME, loaded.DIMS) == ("op", {"size": None})


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("import torch\nmodel.eval()\n", False),
        ("import importlib.util\n", True),
        ("from importlib import import_module\n", True),
        ("def run(x):\n    return __import__('kit')\n", True),
        ("exec(open('kit.py').read())\n", True),
        ("def :\n", False),
    ],
)
def test_who_can_import_by_a_name_that_it_makes_may_import_anything(text: str, more: bool, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(text)
    assert own_modules.may_import_more(tmp_path / "kernel.py") is more


@pytest.mark.parametrize("folder", [".", "src"])
def test_a_callable_is_made_of_what_it_imports(folder: str, project: Path) -> None:
    """An edit of another kernel in the folder is none of it, but of one that imports by name."""
    (project / folder).mkdir(exist_ok=True)
    for name in ("mine", "kit", "shapes.py", "broken.py"):
        if folder != ".":
            (project / name).rename(project / folder / name)
    prefix = "" if folder == "." else f"{folder}/"
    read = [f"{prefix}{name}" for name in ("mine/op.py", *(name for name in READ if name != "mine/op.py"))]

    def made_of(entry: str) -> list[str]:
        return build._source_names(variant(abi="python", entry=entry, sources=[]), project)

    assert made_of("mine.op:run") == read
    assert made_of("mine/op.py:run") == (read if folder == "." else ["mine/op.py"])  # a path is from the root
    (project / folder / "mine" / "deep.py").write_text("import importlib\n")
    assert f"{prefix}mine/nobodys.py" in made_of("mine.op:run")
    assert made_of("torch:relu") == []
