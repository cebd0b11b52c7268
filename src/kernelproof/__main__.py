"""`python -m kernelproof`, and the `kernelproof` command: one process for one stage, made to start and to end fast."""

import gc
import os
import sys
from typing import NoReturn


def program() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    # Importing torch makes some 300,000 objects that live to the end: looking through them again and again, and taking
    # them apart afterwards, costs as much as a third of the import.
    gc.set_threshold(100_000, 20, 20)
    from kernelproof.cli import main

    try:
        code = main()
    except SystemExit as ended:  # argparse: 0 after --help, 2 after a fault, which it has printed
        code = ended.code if isinstance(ended.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    program()
