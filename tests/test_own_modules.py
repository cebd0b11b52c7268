"""Which of a project's own files an operator's module is made of."""

from pathlib import Path

import pytest

from kernelproof import operators, own_modules
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


@pytest.mark.parametrize("module", ["mine.op", "mine/op.py"])
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
