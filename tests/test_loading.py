"""Loading by each ABI, and images as NumPy and torch see them."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from defects import BAND_BYTES, REPOSITORY, image, library

from kernelproof import loading
from kernelproof.errors import WorkerReplyError
from kernelproof.loading import Candidate
from kernelproof.memory import needs_torch


def test_memory_that_cannot_be_read_is_not_there() -> None:
    memory = mmap.mmap(-1, 1100 * mmap.PAGESIZE)
    tensor = torch.frombuffer(memory, dtype=torch.float32)
    assert loading.is_there(tensor)
    assert loading.is_there(tensor[3:4])
    assert loading.is_there(tensor[:0])
    protect = ctypes.CDLL(None).mprotect
    page = mmap.PAGESIZE // 4
    for number in (0, 500, 1099):
        where = ctypes.c_void_p(tensor.data_ptr() + number * mmap.PAGESIZE)
        assert protect(where, ctypes.c_size_t(mmap.PAGESIZE), loading.PROT_NONE) == 0
        assert not loading.is_there(tensor)
        assert not loading.is_there(tensor[number * page : number * page + 1])
        assert loading.is_there(tensor[page * 501 : page * 1099])
        assert protect(where, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    assert loading.is_there(tensor[::page].reshape(10, 110).T)


def of(abi: str, entry: str = "run") -> Candidate:
    return Candidate(abi, "cpu", "destination", entry, None, ".")


def test_tvm_ffi() -> None:
    run = loading.load(of("tvm_ffi"), library("good"), REPOSITORY)
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    y = np.zeros_like(x)
    run(x, np.ones(4, np.float32), y, 0.0)
    np.testing.assert_allclose((y**2).mean(1), 1, rtol=1e-6)
    with pytest.raises(Exception, match="weight"):
        run(x, np.ones(5, np.float32), y, 0.0)


def test_what_is_wrong_with_a_library_is_said(tmp_path: Path) -> None:
    with pytest.raises(WorkerReplyError, match="the library does not exist"):
        loading.load(of("tvm_ffi"), tmp_path / "none.so", tmp_path)
    with pytest.raises(WorkerReplyError, match="exports no TVM-FFI function 'walk'"):
        loading.load(of("tvm_ffi", "walk"), library("good"), tmp_path)
    with pytest.raises(
        WorkerReplyError, match=r"'runn', which is the variant's `entry`.*; allowed: run; did you mean 'run'\?"
    ) as caught:
        loading.load(of("tvm_ffi", "runn"), library("good"), tmp_path)
    assert str(caught.value.hint).startswith("mend `entry` in the configuration, or end the binding with ")
    (tmp_path / "broken.so").write_text("not a library")
    with pytest.raises(WorkerReplyError, match=r"broken\.so: it cannot be loaded"):
        loading.load(of("tvm_ffi"), tmp_path / "broken.so", tmp_path)
    with pytest.raises(WorkerReplyError, match="no Python extension"):
        loading.load(of("torch"), library("good"), tmp_path)


def test_python_file_and_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "beside_mine.py").write_text("TWO = 2\n")
    (tmp_path / "kernels" / "mine.py").write_text("from beside_mine import TWO\n\ndef twice(x):\n    return TWO * x\n")
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert loading.load(of("python", "kernels/mine.py:twice"), None, tmp_path)(4) == 8
    assert loading.load(of("python", "kernels.mine:twice"), None, tmp_path)(4) == 8
    assert loading.load(of("python", "torch.nn.functional:relu"), None, tmp_path)(torch.tensor(-1.0)) == 0
    for entry, words in (
        ("kernels/mine.py:thrice", "no function 'thrice' in it; did you mean 'twice'"),
        ("torch.nn.functional:gellu", r"torch.nn.functional: .* 'gellu' in it; did you mean 'gelu'\?$"),
        ("torch.nn.functional:zzzz", r"in it; it has: (\w+, ){19}\w+ and \d+ more$"),
        ("kernels/none.py:twice", "kernels/none.py: the file does not exist"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("twice", "not of the form module:function"),
    ):
        with pytest.raises(WorkerReplyError, match=words):
            loading.load(of("python", entry), None, tmp_path)


EXTENSION = """
#include <Python.h>
static PyObject *twice(PyObject *, PyObject *x) { return PyNumber_Add(x, x); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "my_kernels", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_my_kernels() { return PyModule_Create(&module); }
"""


def test_torch_extension_whatever_its_module_is_called(tmp_path: Path) -> None:
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("this Python has no headers")
    (tmp_path / "extension.cc").write_text(EXTENSION)
    target = tmp_path / "some_variant.so"
    command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*command, tmp_path / "extension.cc", "-o", target], check=True)
    twice = loading.load(of("torch", "twice"), target, tmp_path)
    assert torch.equal(twice(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 4.0]))
    with pytest.raises(WorkerReplyError, match=r"no function 'run' in it; it has: twice"):
        loading.load(of("torch"), target, tmp_path)


def test_two_extensions_whose_modules_have_one_name_are_two(tmp_path: Path) -> None:
    """pybind11 knows a module by the name that it is imported by: of the second one it gave the first."""
    headers = [sysconfig.get_path("include"), str(Path(torch.__file__).parent / "include")]
    if not Path(headers[0], "Python.h").exists():
        pytest.skip("this Python has no headers")
    source = tmp_path / "extension.cc"
    source.write_text(
        '#include <pybind11/pybind11.h>\nPYBIND11_MODULE(same, m) { m.def("run", [](int x) { return x + STEP; }); }\n'
    )
    found = []
    for step in (1, 2):
        target = tmp_path / f"{step}.so"
        command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O0", "-shared", "-fPIC", *(f"-I{h}" for h in headers)]
        subprocess.run([*command, f"-DSTEP={step}", source, "-o", target], check=True)
        found.append(loading.load(of("torch"), target, tmp_path))
    assert [run(40) for run in found] == [41, 42]


@pytest.mark.parametrize("with_torch", [False, True])
def test_an_image_is_seen_with_its_strides(tmp_path: Path, with_torch: bool) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    descriptor = image(tmp_path, "x", whole)
    descriptor |= {"shape": [3, 2, 4], "strides": [4, 12, 1]}
    found = loading.load_image(descriptor, "cpu", with_torch)
    assert np.asarray(found.view).tolist() == whole.transpose(1, 0, 2).tolist()
    found.view[0, 0, 0] = 7  # the view is of the image, not a copy
    assert loading.to_bytes(found.raw)[BAND_BYTES : BAND_BYTES + 4].cast("B") == np.float32(7).tobytes()
    address = found.raw.data_ptr() if with_torch else found.raw.ctypes.data
    assert address % mmap.PAGESIZE == 0


def test_bfloat16_and_empty_images(tmp_path: Path) -> None:
    descriptor = image(tmp_path, "x", np.array([0x3F80, 0x4000], np.int16)) | {"dtype": "bfloat16"}
    assert loading.load_image(descriptor, "cpu", True).view.tolist() == [1.0, 2.0]
    descriptor = image(tmp_path, "none", np.zeros((0, 4), np.float32)) | {"strides": [4, 1]}
    assert loading.load_image(descriptor, "cpu", True).view.shape == (0, 4)
    assert loading.load_image(descriptor, "cpu", False).view.shape == (0, 4)


def test_bytes_of_a_type_that_numpy_lacks_are_given_as_it(tmp_path: Path) -> None:
    codes = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    descriptor = image(tmp_path, "x", codes) | {"dtype": "float8_e4m3fn", "shape": [3, 2, 4], "strides": [4, 12, 1]}
    found = loading.load_image(descriptor, "cpu", False)
    given = torch.from_dlpack(found.argument)
    assert (given.dtype, list(given.stride())) == (torch.float8_e4m3fn, [4, 12, 1])
    assert given.view(torch.uint8).tolist() == found.view.tolist() == codes.transpose(1, 0, 2).tolist()
    found.view[0, 0, 0] = 7  # it is the same memory
    assert int(given.view(torch.uint8)[0, 0, 0]) == 7


def test_torch_is_imported_only_where_it_must_be() -> None:
    assert not needs_torch("tvm_ffi", "cpu", ["float32", "float16", "uint8"])
    assert needs_torch("tvm_ffi", "cpu", ["float32", "bfloat16"])
    assert not needs_torch("tvm_ffi", "cpu", ["uint8", "float8_e4m3fn"], ["float16"])
    assert needs_torch("tvm_ffi", "cpu", ["float32"], ["float8_e4m3fn"])
    assert needs_torch("tvm_ffi", "cuda", ["float32"])
    assert needs_torch("python", "cpu", ["float32"])


def test_a_candidate_carries_nothing_that_it_is_judged_on() -> None:
    names = {field.name for field in dataclasses.fields(Candidate)}
    assert names == {"abi", "device", "passing", "entry", "library", "root", "cubins"}


def test_a_new_file_takes_the_place_of_an_old_one_and_follows_no_link(tmp_path: Path) -> None:
    path, other = tmp_path / "q.img", tmp_path / "other"
    path.write_bytes(b"as it was")
    with loading.new_file(path) as stream:
        stream.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(WorkerReplyError, match=r"q\.img: a link was put where this file is to be written"):
        loading.new_file(path)
    assert not other.exists()
