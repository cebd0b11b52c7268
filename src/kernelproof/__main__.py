"""`python -m kernelproof`, and the `kernelproof` command: one process for one stage, made to start and to end fast."""

import atexit
import os
import signal
import sys
from typing import NoReturn


def program() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    from kernelproof.cli import INTERRUPTED, main
    from kernelproof.processes import collect_rarely

    collect_rarely()
    _open_closed_output()

    try:
        code = main()
    except SystemExit as ended:  # argparse: 0 after --help, 2 after a fault, which it has printed
        code = ended.code if isinstance(ended.code, int) else 1
    if code == INTERRUPTED:  # who is impatient does not interrupt the end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()  # scratch folders go
    os._exit(code)  # taking torch's objects apart takes as long as making them


def _open_closed_output() -> None:
    """A stream that the shell closed (`>&-`) goes nowhere; else the next file that is opened would be in its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  until the process ends


if __name__ == "__main__":
    program()
