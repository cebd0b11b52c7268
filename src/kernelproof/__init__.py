"""kernelproof turns a commit of a CUDA kernel repository into evidence that a reviewer can check."""

__version__ = "0.1.0"

# What a run sets for its stages: a file to which each tells when it starts and how it ended, and the process of the
# workflow, which they do not outlive, and the state of the repository when it began.
EVENTS, RUN_PID, RUN_STATE = OF_A_RUN = ("KERNELPROOF_EVENTS", "KERNELPROOF_RUN_PID", "KERNELPROOF_RUN_STATE")
