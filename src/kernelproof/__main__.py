"""`python -m kernelproof`, and the `kernelproof` command: one process for one stage, made to start and to end fast."""

import atexit
import os
import signal
import sys
from typing import NoReturn


def program() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    from kernelproof.cli import main
    from kernelproof.errors import ExitCode
    from kernelproof.processes import collect_rarely, prepare_output

    collect_rarely()
    prepare_output()

    try:
        code = main()
    except SystemExit as ended:  # argparse: 0 after --help, 2 after a fault, which it has printed
        code = ended.code if isinstance(ended.code, int) else 1
    if code == ExitCode.INTERRUPTED:  # who is impatient does not interrupt the end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()  # scratch folders go
    os._exit(code)  # taking torch's objects apart takes as long as making them


if __name__ == "__main__":
    program()
