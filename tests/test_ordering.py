"""What a call leaves its thread."""

import ctypes
import platform

import pytest

from kernelproof import ordering
from kernelproof.errors import WorkerReplyError

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
