"""What every folder of tests shares: the package without an install, and tests that need a GPU."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent

PLUGIN_KEYS = {
    "pytest_timeout": ["timeout"],
    "pytest_asyncio": ["asyncio_mode", "asyncio_default_fixture_loop_scope"],
}

# Threads that wait for one another crawl on a machine that is busy with other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

INSTALLED = find_spec("tensorfold") is not None
if not INSTALLED:
    import uninstalled  # noqa: F401


def pytest_addoption(parser: pytest.Parser) -> None:
    # A machine without these plugins still runs the tests; their keys would be unknown to it.
    for plugin, keys in PLUGIN_KEYS.items():
        if find_spec(plugin) is None:
            for key in keys:
                parser.addini(key, f"a setting of {plugin}")


def pytest_configure(config: pytest.Config) -> None:
    if find_spec("xdist") is None:
        config.addinivalue_line("markers", "xdist_group(name): tests that one process runs")
    # Benchmarks print figures and are asked for by name; elsewhere they run once, as tests.
    option = config.option
    if not getattr(option, "benchmark_only", True) and not option.benchmark_enable:
        option.benchmark_disable = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_device = {item for item in items if CHECKOUT / "tests" / "device" in item.path.parents}
    # The longest are in groups: processes that share the tests out begin with those.
    ordered = iter(sorted(filter(on_device.__contains__, items), key=alone))
    items[:] = [next(ordered) if item in on_device else item for item in items]
    lacking = no_device() if on_device else None
    if lacking:
        for item in on_device:
            item.add_marker(pytest.mark.skip(reason=lacking))


def alone(item: pytest.Item) -> bool:
    """Whether a test is in no group that one process runs."""
    return item.get_closest_marker("xdist_group") is None


def no_device() -> str | None:
    """Why tests that need a GPU cannot run here; none when they can."""
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "no GPU on this machine"


@pytest.fixture(scope="session")
def tensorfold_command() -> list[str]:
    """The command line that starts `tensorfold` from any folder, installed or not."""
    if INSTALLED:
        return [sys.executable, "-m", "tensorfold.tools.cli"]
    return [sys.executable, str(CHECKOUT / "uninstalled.py")]
