"""kernelproof turns a commit of a CUDA kernel repository into evidence that a reviewer can check."""

__version__ = "0.1.0"
