"""What a call leaves its thread, and threads that outlive it."""

import ctypes
import platform
import threading
import time

import numpy as np
import pytest

from kernelproof import ordering
from kernelproof.errors import WorkerReplyError
from kernelproof.loading import Image

pytest.importorskip("torch")


WHY = "elsewhere there is one rounding mode, and fegetround says it"


def round_upwards() -> tuple[int, float]:
    """As `_MM_SET_ROUNDING_MODE` does: what fegetround says then, and a sum."""
    library, environment = ctypes.CDLL("libm.so.6"), ordering._Environment()
    library.fegetenv(ctypes.byref(environment))
    environment.words[ordering.MXCSR_WORD] |= 0x4000
    library.fesetenv(ctypes.byref(environment))
    return library.fegetround(), float("1.0") + float("1e-30")


@pytest.mark.skipif(platform.machine() != "x86_64", reason=WHY)
def test_the_rounding_mode_of_vector_units_is_kept_too() -> None:
    """It is none of the x87's, which is all that fegetround reads."""
    with ordering.rounding_kept():
        pass
    seen = []
    with pytest.raises(WorkerReplyError, match="rounding mode 0x4000 where it found 0x0"), ordering.rounding_kept():
        seen.append(round_upwards())
    assert seen == [(0, 1.0000000000000002)]
    assert float("1.0") + float("1e-30") == 1.0


@pytest.mark.parametrize("late_s", [0.0, 0.002])
def test_a_thread_that_writes_what_is_there_already_is_late_all_the_same(late_s: float) -> None:
    image, right = Image(np.zeros(64, np.uint8), None), np.arange(64, dtype=np.uint8)
    threads: list[threading.Thread] = []

    def again(returned: threading.Event) -> None:
        returned.wait()
        time.sleep(late_s)
        image.raw[-8:] = right[-8:]

    def act() -> None:
        image.raw[:] = right
        returned = threading.Event()
        threads.append(threading.Thread(target=again, args=(returned,)))
        threads[-1].start()
        returned.set()

    order = ordering.OnHost()
    for _ in range(20):  # on a busy machine it may write before the call has returned, and is not late then
        taken = order.call(act, {"y": image}, ["y"])
        threads.pop().join()
        if taken.when:
            break
    assert (taken.when, taken.changed_bytes) == ("after", 8)
    assert (taken.outputs["y"] == right).all()
    assert (image.raw == right).all()
    honest = order.call(lambda: image.raw.fill(7), {"y": image}, ["y"])
    assert (honest.when, honest.outputs["y"].tolist(), image.raw.tolist()) == ("", [7] * 64, [7] * 64)


def test_of_large_outputs_a_late_write_is_seen_too() -> None:
    image = Image(np.zeros(ordering.SCRAMBLED_BYTES + 1, np.uint8), None)
    threads: list[threading.Thread] = []
    over = threading.Event()

    def clear() -> None:
        over.wait()
        time.sleep(0.001)  # the outputs are copied
        image.raw[0] = 0

    def act() -> None:
        image.raw[:] = 7
        threads.append(threading.Thread(target=clear))
        threads[-1].start()
        time.sleep(ordering.LATE_WAIT_S)
        over.set()

    order = ordering.OnHost()
    taken = order.call(act, {"y": image}, ["y"])
    threads[0].join()
    assert (taken.when, taken.changed_bytes, taken.outputs["y"].min()) == ("after", 1, 7)
