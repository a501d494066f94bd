"""Nothing above `engine_api` imports torch, and what says what is installed does not either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

# Rooms whose every module stays clear of torch, and single modules elsewhere that do.
ROOMS = ("core/*.py", "core/lane_host/*.py", "core/server/*.py", "core/text/*.py", "plugins/*.py")
# Headers are read without torch; `load.py` makes tensors.
ROOMS += ("core/checkpoint/*.py", "backends/fake/*.py", "backends/*/plugin.py")
ROOMS += ("families/*/plugin.py", "families/*/config.py", "families/*/chat.py")
TOOLS = ("cli", "serve", "ask", "models", "show_plugins", "check", "status_line")

PROGRAM = """
import sys
from importlib import import_module

if len(sys.argv) > 1 and sys.argv[1] == "uninstalled":
    sys.path.insert(0, sys.argv[2])
    import uninstalled
for name in sys.stdin.read().split():
    import_module(name)
    assert "torch" not in sys.modules, name
"""


def modules() -> list[str]:
    below = CHECKOUT / "core" / "checkpoint" / "load.py"
    paths = [path for pattern in ROOMS for path in CHECKOUT.glob(pattern) if path != below]
    names = [".".join(path.relative_to(CHECKOUT).with_suffix("").parts) for path in paths]
    names += [f"tools.{tool}" for tool in TOOLS]
    return ["tensorfold." + name.removesuffix(".__init__") for name in names]


def test_the_rooms_above_the_engine_import_without_torch(tensorfold_command: list[str]) -> None:
    uninstalled = ["uninstalled", str(CHECKOUT)] if "-m" not in tensorfold_command else []
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *uninstalled],
        input="\n".join(modules()),
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


COLLECT = """
import sys
import pytest

code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests/null"])
assert code == 0, code
assert "torch" not in sys.modules
"""


def test_the_tests_that_need_nothing_import_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        cwd=CHECKOUT,
        text=True,
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
