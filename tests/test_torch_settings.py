"""Torch is afterwards as it was, and who changed it is named."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof import gpu, torch_settings

PRESENT, WHY = gpu.available()


def test_who_leaves_torch_other_threads_is_named_and_the_next_has_as_many_as_before() -> None:
    before = torch.get_num_threads()
    with torch_settings.torch_kept(refused=True):
        pass
    with torch_settings.torch_kept(refused=False):
        torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before
    with (
        pytest.raises(RuntimeError, match=f"left the process with threads {before + 2} where"),
        torch_settings.torch_kept(refused=True),
    ):
        torch.set_num_threads(before + 2)
    assert torch.get_num_threads() == before


def test_who_leaves_another_folder_and_mode_of_files_is_not_blamed_and_the_next_has_neither(tmp_path: Path) -> None:
    before, mask = Path.cwd(), os.umask(0o022)
    with torch_settings.torch_kept(refused=True):
        os.chdir(tmp_path)
        os.umask(0o777)
    assert (Path.cwd(), os.umask(mask)) == (before, 0o022)


Get = Callable[[], Any]
Put = Callable[[Any], object]


def refused_and_put_back(get: Get, put: Put, other: object, said: str) -> None:
    before = get()
    with pytest.raises(RuntimeError, match=said), torch_settings.torch_kept(refused=True):
        put(other)
    assert get() == before
    with torch_settings.torch_kept(refused=False):
        put(other)
        assert get() != before, "it was not changed, and this shows nothing"
    assert get() == before


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("the default type", torch.float64),
        ("gradients", False),
        ("the precision of float32 products", "medium"),
        ("deterministic algorithms", True),
        ("oneDNN", False),
        ("cuDNN benchmark", True),
        ("flash attention", False),
    ],
)
def test_who_changes_what_torch_runs_is_named_and_the_next_finds_it_as_before(setting: str, value: Any) -> None:
    get, put = torch_settings._torch_settings()[setting]
    refused_and_put_back(get, put, value, f"left the process with {setting} {value} where it found {get()}")


@pytest.mark.parametrize("setting", ["levels of threads", "leave to adjust them"])
def test_who_forbids_torch_its_threads_is_named_and_the_next_may_have_them(setting: str) -> None:
    get, put = next(both for name, both in torch_settings._openmp_settings().items() if name.startswith(setting))
    other = 0 if get() else 1
    refused_and_put_back(get, put, other, f"left the process with {setting} .*{other} where")


@pytest.mark.gpu
@pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")
@pytest.mark.parametrize("setting", ["bytes fetched into L2 at a time", "bytes of L2 set aside"])
def test_who_changes_how_the_cache_is_used_is_named_and_the_next_finds_it_as_before(setting: str) -> None:
    torch.zeros(1, device="cuda")
    get, put = torch_settings._device_settings()[setting]
    other = get() + (1 << 20) if "aside" in setting else 32 if get() == 64 else 64
    refused_and_put_back(get, put, other, rf"left the process with {setting} \d+ where it found {get()}")
