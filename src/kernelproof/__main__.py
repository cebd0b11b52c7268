"""`python -m kernelproof`."""

import sys

from kernelproof.cli import main

sys.exit(main())
