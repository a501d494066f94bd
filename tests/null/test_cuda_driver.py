"""Why the CUDA backend cannot run here is said in one sentence, without torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorfold.backends.cuda_triton import driver
from tensorfold.backends.cuda_triton.plugin import BACKEND

Install = Callable[..., None]


class Driver:
    """The calls of libcuda that are used, on a machine with these GPUs."""

    def __init__(self, init: int = 0, count: int = 1, version: tuple[int, int] = (9, 0)) -> None:
        self.cuInit = lambda flags: init
        self.count, self.version = count, version

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = 7
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        assert device.value == 7
        value._obj.value = self.version[attribute - driver.MAJOR]
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    def install(found: Driver | None, cuda: str = "'13.0'", packages: str = "torch triton") -> None:
        def load(name: str) -> Any:
            if found is None:
                raise OSError(name)
            return found

        (tmp_path / "version.py").write_text(f"cuda: Optional[str] = {cuda}\nhip: str = None\n")
        specs = {name: SimpleNamespace(origin=str(tmp_path / "x.py")) for name in packages.split()}
        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(driver, "find_spec", specs.get)

    return install


def test_a_machine_with_everything_lacks_nothing(machine: Install) -> None:
    machine(Driver())
    assert BACKEND.unusable() is None
    machine(Driver(version=(8, 9)))
    assert BACKEND.unusable() is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "no NVIDIA driver is installed"),
        (Driver(init=100), "the NVIDIA driver finds no GPU that it can use"),
        (Driver(count=0), "the NVIDIA driver finds no GPU"),
        (Driver(version=(8, 0)), "the GPU has compute capability 8.0, and 8.9 is needed"),
    ],
)
def test_what_the_driver_lacks_is_named(machine: Install, found: Driver | None, why: str) -> None:
    machine(found)
    assert BACKEND.unusable() == why


def test_a_missing_package_is_named(machine: Install) -> None:
    machine(Driver(), packages="triton")
    assert BACKEND.unusable() == "torch is not installed"
    machine(Driver(), packages="torch")
    assert BACKEND.unusable() == "triton is not installed"
    machine(Driver(), cuda="None")
    assert BACKEND.unusable() == "this torch is built without CUDA"
