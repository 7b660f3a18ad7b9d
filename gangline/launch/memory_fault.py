"""PURE: which errors are a lack of memory, of a GPU or of the host, by their class and text.

A rank asks about the exception that ended it, the trial runner about the traceback that a process has printed. The
scheduler gives `parallelism: auto` another try with less memory, and retries no other trial.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_CLASSES = {"MemoryError", "OutOfMemoryError", "c10::OutOfMemoryError"}
# Classes in Python and C++ by which torch, JAX and NCCL pass on an error of the driver, which only the text names.
_CARRIERS = {
    *("RuntimeError", "AcceleratorError", "DistBackendError", "JaxRuntimeError", "XlaRuntimeError"),
    *("c10::Error", "c10::AcceleratorError", "c10::DistBackendError"),
}
_WORDS = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
# Names that mean a lack of memory in an error of any class. cuDNN 9 has names of its own for memory inside a call.
_NAMES = re.compile(
    r"CU(?:DA|BLAS|DNN|FFT|SPARSE|SOLVER|RAND)_\w*(?:ALLOC|ALLOCATION)_FAILED|CUFFT_ALLOC_FAILED"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUDA out of memory|DefaultCPUAllocator: can't allocate memory"
)
# Errors of libraries that find no room for their handle or workspace on a full GPU, and that have other causes too.
_POSSIBLE = re.compile(
    r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_(?:NOT_SUPPORTED|NOT_INITIALIZED|INTERNAL_ERROR)"
    r"|unable to find an engine to execute this computation"
)


def is_lack_of_memory(class_names: Iterable[str], text: str) -> bool:
    """Returns whether an error is a lack of memory. class_names: of the exception's class, and of those above it where
    they are known."""
    names = set(class_names)
    if names & _CLASSES or _NAMES.search(text):
        return True
    return bool(names & _CARRIERS) and bool(_WORDS.search(text))


def may_be_lack_of_memory(text: str) -> bool:
    """Returns whether an error is a lack of memory if the GPU is full."""
    return bool(_POSSIBLE.search(text))
