"""Every way to get TensorFold gives the same package: uninstalled, editable, wheel and plain.

One throwaway environment, the modes in turn. Nothing is fetched: what TensorFold needs is linked
in from the environment that runs the tests.
"""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.throwaway import FOLDERS, copied_checkout, throwaway_environment

OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")
CHILD = (
    "import subprocess; from tensorfold.tools.own_command import own_command; "
    "command = [*own_command('tensorfold.tools.cli'), 'version']; "
    "print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)"
)
PROBE = "import tensorfold.core.settings as s, tensorfold.plugins.manager; print(s.__file__)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A copy of the checkout, an environment to install it into, and room for what is built."""

    checkout: Path
    python: Path
    room: Path

    def run(self, *arguments: str | Path, at: Path | None = None) -> str:
        """What the environment's Python prints; away from the checkout unless told otherwise."""
        command = [str(self.python), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=at or self.room, text=True, capture_output=True, check=False, timeout=100
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def install(self, *what: str | Path) -> None:
        self.run("-m", "pip", "uninstall", "--quiet", "--yes", "tensorfold")
        self.run("-m", "pip", "install", "--quiet", *OFFLINE, *what)

    def command(self, *arguments: str) -> str:
        """What the console script of the install prints."""
        return self.run(self.python.parent / "tensorfold", *arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    room = tmp_path_factory.mktemp("install")
    checkout = copied_checkout(room / "checkout")
    python = throwaway_environment(room / "environment", room / "needed")
    return Place(checkout=checkout, python=python, room=room)


@pytest.fixture(scope="module")
def uninstalled(place: Place) -> dict[str, str]:
    """What the copy says of itself when it is not installed: the measure of the other modes."""
    place.run("-m", "pip", "uninstall", "--quiet", "--yes", "tensorfold")
    return {
        tool: place.run(place.checkout / "uninstalled.py", tool)
        for tool in ("version", "plugins", "models")
    }


def assert_same(place: Place, uninstalled: dict[str, str], moved: tuple[Path, Path]) -> None:
    """The installed command says what the uninstalled one says, but for where its folders are."""
    before, now = map(str, moved)
    for tool, words in uninstalled.items():
        assert place.command(tool) == words.replace(before, now), tool


def test_an_uninstalled_checkout_has_its_plugins(uninstalled: dict[str, str]) -> None:
    assert uninstalled["version"].startswith("tensorfold ")
    assert "cpu-reference" in uninstalled["plugins"] or "cpu_reference" in uninstalled["plugins"]


def test_an_uninstalled_checkout_is_a_package_to_other_programs(place: Place) -> None:
    place.run("-m", "pip", "uninstall", "--quiet", "--yes", "tensorfold")
    printed = place.run("-c", f"import uninstalled; {PROBE}", at=place.checkout)
    assert printed.strip() == str(place.checkout / "core" / "settings.py")


def test_a_program_of_an_uninstalled_checkout_starts_another_of_it(place: Place) -> None:
    place.run("-m", "pip", "uninstall", "--quiet", "--yes", "tensorfold")
    attach = f"import sys; sys.path.insert(0, {str(place.checkout)!r}); import uninstalled; "
    assert place.run("-c", attach + CHILD).startswith("tensorfold ")


def test_an_editable_install_follows_the_checkout(
    place: Place, uninstalled: dict[str, str]
) -> None:
    place.install("--editable", place.checkout)
    assert place.run("-c", PROBE).strip() == str(place.checkout / "core" / "settings.py")
    assert_same(place, uninstalled, (place.checkout, place.checkout))
    fresh = place.checkout / "core" / "fresh_module.py"
    fresh.write_text("FRESH = 1\n")
    try:
        assert place.run("-c", "import tensorfold.core.fresh_module as f; print(f.FRESH)") == "1\n"
    finally:
        fresh.unlink()


def test_a_plain_install_stands_alone(place: Place, uninstalled: dict[str, str]) -> None:
    place.install(place.checkout)
    package = installed_package(place)
    assert_same(place, uninstalled, (place.checkout, package))


def test_a_wheel_from_a_source_distribution_holds_every_file(
    place: Place, uninstalled: dict[str, str]
) -> None:
    built = place.room / "built"
    built.mkdir()
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    place.run("-c", build, at=place.checkout)
    (source,) = built.glob("*.tar.gz")
    place.run("-m", "pip", "wheel", "--quiet", *OFFLINE, "--wheel-dir", built, source)
    (wheel,) = built.glob("*.whl")
    held = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(held) == sorted(f"tensorfold/{path}" for path in shipped(place.checkout))
    place.install(wheel)
    assert_same(place, uninstalled, (place.checkout, installed_package(place)))


def installed_package(place: Place) -> Path:
    """The folder `tensorfold` in the environment, and nobody's folder called `core`."""
    package = Path(place.run("-c", PROBE).strip()).parents[1]
    assert package.is_relative_to(place.room / "environment")
    assert not {path.name for path in package.parent.iterdir()} & set(FOLDERS)
    return package


def shipped(checkout: Path) -> Sequence[str]:
    """Every file of the five folders, but for what Python leaves there."""
    files = [path for folder in FOLDERS for path in (checkout / folder).rglob("*")]
    return [
        str(path.relative_to(checkout))
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    ]
