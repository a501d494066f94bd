"""What the NVIDIA driver says of this machine, asked without torch."""

from __future__ import annotations

import ctypes
import re
from importlib.util import find_spec
from pathlib import Path

# Tensor cores of the formats that the kernels use.
LEAST = (8, 9)
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def capability() -> tuple[int, int] | str:
    """The first GPU's compute capability, or why there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed"
    if driver.cuInit(0):
        return "the NVIDIA driver finds no GPU that it can use"
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver finds no GPU"
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = driver.cuDeviceGet(ctypes.byref(device), 0)
    failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
    failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    if failed:
        return f"the NVIDIA driver does not describe its first GPU (error {failed})"
    return major.value, minor.value


def num_gpus() -> int:
    """How many GPUs the driver lets this process use."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def lacking_package() -> str | None:
    """Which package is missing; a torch for the CPU alone is missing CUDA."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return "torch is not installed"
    told = (Path(torch.origin).parent / "version.py").read_text("utf-8")
    if re.search(r"^cuda\b.*= None$", told, re.M):
        return "this torch is built without CUDA"
    if find_spec("triton") is None:
        return "triton is not installed"
    return None


def lacking() -> str | None:
    """Why the backend cannot run on this machine, in one sentence; none when it can."""
    found = capability()
    if isinstance(found, str):
        return found
    if found < LEAST:
        have, need = (".".join(map(str, version)) for version in (found, LEAST))
        return f"the GPU has compute capability {have}, and {need} is needed"
    return lacking_package()
