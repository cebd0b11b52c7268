"""Finding compilers: in toolkits made of small scripts, and the real ones where there are any."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from kernelproof import toolchain
from kernelproof.errors import ToolError

EVERY_TOOL = [*toolchain.COMPILE_TOOLS.values(), *toolchain.BINARY_TOOLS.values()]


def toolkit(home: Path, *, library: str = "lib", without: str = "", version: str = "13.0.88") -> Path:
    """A CUDA toolkit whose tools only say their version."""
    for below, _ in EVERY_TOOL:
        path = home / below
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V{version}'\n# {below}\n")
        path.chmod(0o755)
    for below in (*toolchain.NEEDED_FILES, f"{library}/{toolchain.RUNTIME}"):
        (home / below).parent.mkdir(parents=True, exist_ok=True)
        (home / below).touch()
    if without:
        (home / without).unlink()
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No toolkit but what a test makes: neither variables nor wheels nor a PATH with nvcc."""
    for name in (toolchain.CUDA_HOME_VARIABLE, "CUDA_HOME", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("nvidia", "triton")]:
        monkeypatch.delitem(sys.modules, name)


def search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this interpreter look for packages in a folder too."""
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


@pytest.mark.parametrize("library", ["lib", "lib64"])
def test_given_home(tmp_path: Path, library: str) -> None:
    found = toolchain.find_cuda(toolkit(tmp_path / "cuda", library=library))
    assert (found.origin, found.version) == ("cuda-home", "13.0.88")
    assert found.library_folder == tmp_path / "cuda" / library
    assert found.include == tmp_path / "cuda" / "include"
    nvcc = found.tools["nvcc"]
    assert nvcc.sha256 == hashlib.sha256(nvcc.path.read_bytes()).hexdigest()
    assert set(found.tools) == {*toolchain.COMPILE_TOOLS, *toolchain.BINARY_TOOLS, toolchain.RUNTIME}
    assert found.compiler().sha256 == found.fingerprint


def test_home_from_the_environment_and_the_argument_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(toolchain.CUDA_HOME_VARIABLE, str(toolkit(tmp_path / "one")))
    assert toolchain.find_cuda().home == tmp_path / "one"
    assert toolchain.find_cuda(toolkit(tmp_path / "two")).home == tmp_path / "two"


def test_wheels_before_the_system_and_the_newest_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    toolkit(site / "nvidia" / "cu9")
    toolkit(site / "nvidia" / "cu13")
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "system")))
    assert toolchain.find_cuda().origin == "system"
    search(site, monkeypatch)
    found = toolchain.find_cuda()
    assert (found.home, found.origin) == (site / "nvidia" / "cu13", "wheels")


def test_given_home_without_nvcc_is_no_reason_to_look_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "system")))
    with pytest.raises(ToolError, match="bin/nvcc does not exist") as raised:
        toolchain.find_cuda(tmp_path / "nothing")
    assert raised.value.subject == "--cuda-home"
    assert raised.value.hint


@pytest.mark.parametrize(
    "below", ["bin/ptxas", "nvvm/bin/cicc", "bin/cudafe++", "include/cuda_runtime.h", "lib/libcudart_static.a"]
)
def test_missing_part_is_named_with_place_and_remedy(tmp_path: Path, below: str) -> None:
    home = toolkit(tmp_path / "cuda", without=below)
    with pytest.raises(ToolError, match=f"looked for .*{below}".replace("+", r"\+")) as raised:
        toolchain.find_cuda(home)
    assert raised.value.subject == Path(below).name
    assert "nvidia-" in str(raised.value.hint)
    assert "--cuda-home" in str(raised.value.hint)


def test_binary_tools_may_come_from_elsewhere_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = toolkit(tmp_path / "cuda", without="bin/nvdisasm")
    site = tmp_path / "site"
    triton = site / "triton" / "backends" / "nvidia" / "bin"
    triton.mkdir(parents=True)
    (site / "triton" / "__init__.py").write_text("raise AssertionError('imported')")
    search(site, monkeypatch)
    with pytest.raises(ToolError, match="nvdisasm"):
        toolchain.find_cuda(home)
    (triton / "nvdisasm").write_text("#!/bin/sh\necho V13.5.37\n")
    (triton / "nvdisasm").chmod(0o755)
    tool = toolchain.find_cuda(home).tools["nvdisasm"]
    assert (tool.path, tool.origin, tool.version) == (triton / "nvdisasm", "triton", "13.5.37")


def test_fingerprint_changes_with_any_compiling_tool_only(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda")
    prints = [toolchain.find_cuda(home).fingerprint]
    for name in ("bin/cuobjdump", "bin/ptxas", "lib/libcudart_static.a"):
        with (home / name).open("a") as stream:
            stream.write("# changed\n")
        prints.append(toolchain.find_cuda(home).fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_cache_saves_hashing_and_notices_changes(tmp_path: Path) -> None:
    home, cache = toolkit(tmp_path / "cuda"), tmp_path / "tools.json"
    first = toolchain.find_cuda(home, cache)
    kept = json.loads(cache.read_text())
    kept[str(home / "bin/ptxas")]["sha256"] = "from the cache"
    cache.write_text(json.dumps(kept))
    assert toolchain.find_cuda(home, cache).tools["ptxas"].sha256 == "from the cache"
    toolkit(home, version="13.0.99")
    os.utime(home / "bin/ptxas", ns=(1, 1))
    again = toolchain.find_cuda(home, cache).tools["ptxas"]
    assert again.version == "13.0.99"
    assert again.sha256 not in ("from the cache", first.tools["ptxas"].sha256)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"x": 3}'])
def test_broken_cache_is_made_again(tmp_path: Path, content: str) -> None:
    home, cache = toolkit(tmp_path / "cuda"), tmp_path / "tools.json"
    cache.write_text(content)
    assert toolchain.find_cuda(home, cache).version == "13.0.88"
    assert str(home / "bin/nvcc") in json.loads(cache.read_text())


def test_nvcc_that_is_a_script_leads_to_its_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/usr/local/cuda/bin/nvcc").is_file():
        pytest.skip("/usr/local/cuda is looked at before the PATH")
    home = toolkit(tmp_path / "cuda")
    (home / "bin/nvcc").write_text(f'#!/bin/sh\necho "#\\$ _HERE_={home}/bin" >&2\necho V13.0.88\n')
    script = tmp_path / "path" / "nvcc"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    assert toolchain.find_cuda().home == home


def test_host_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "mine"
    compiler.write_text("#!/bin/sh\necho 'mine 1.2.3'\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    found = toolchain.find_host_compiler()
    assert (found.path, found.tool.version) == (compiler, "1.2.3")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolError, match="no-such-compiler"):
        toolchain.find_host_compiler()


def test_real_host_compiler_and_what_native_means() -> None:
    found = toolchain.find_host_compiler()
    assert found.tool.version.count(".") >= 1
    assert found.fingerprint != found.tool.sha256, "the compiler proper is hashed with its driver"
    assert toolchain.resolved_target(found, ["-O3", "-fopenmp"]) == ""
    native = toolchain.resolved_target(found, ["-march=native"])
    assert len(native) == 64
    assert native == toolchain.resolved_target(found, ["-O3", "-march=native"])


def test_archs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [toolchain.arch_name(8, 9), toolchain.arch_name(9, 0), toolchain.arch_name(12, 0)] == [
        "sm_89",
        "sm_90a",
        "sm_120a",
    ]
    monkeypatch.setattr(toolchain, "native_archs", lambda: ("sm_90a",))
    assert toolchain.resolve_archs(["sm_89", "sm_90a", "native"]) == ["sm_89", "sm_90a"]
    assert toolchain.resolve_archs(["native", "sm_89"]) == ["sm_90a", "sm_89"]
    monkeypatch.setattr(toolchain, "native_archs", lambda: ())
    assert toolchain.resolve_archs(["sm_89", "native"]) == ["sm_89"]


def test_package_folder_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a_package_of_ours"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    search(tmp_path, monkeypatch)
    assert toolchain.package_folder("a_package_of_ours") == package
    assert toolchain.package_folder("no_such_package_of_ours") is None
