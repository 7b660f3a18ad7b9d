"""Which errors are a lack of memory, by what torch, CUDA's libraries and JAX really write."""

from __future__ import annotations

import pytest

from gangline.launch.memory_fault import is_lack_of_memory, may_be_lack_of_memory


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MemoryError", ""),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"),
        ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        ("AcceleratorError", "CUDA error: out of memory"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("RuntimeError", "cuFFT error: CUFFT_ALLOC_FAILED"),
        ("RuntimeError", "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        ("DistBackendError", "NCCL error in: x.cpp:1, unhandled cuda error\nCuda failure 2 'out of memory'"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
        ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."),
        ("c10::Error", "c10::Error: CUDA error: out of memory"),
    ],
)
def test_lack_of_memory(name: str, text: str) -> None:
    assert is_lack_of_memory((name,), text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ValueError", "the queue ran out of memory slots"),
        ("RuntimeError", "CUDA error: device-side assert triggered"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    ],
)
def test_other_errors(name: str, text: str) -> None:
    assert not is_lack_of_memory((name,), text)


@pytest.mark.parametrize(
    ("text", "is_possible"),
    [
        (
            "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
            True,
        ),
        ("GET was unable to find an engine to execute this computation", True),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_BAD_PARAM", False),
    ],
)
def test_errors_that_depend_on_the_free_memory(text: str, is_possible: bool) -> None:
    assert may_be_lack_of_memory(text) is is_possible
