"""A copy of the checkout and an environment to install it into, with nothing fetched."""

from __future__ import annotations

import shutil
import sys
import venv
from collections.abc import Collection
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("backends", "core", "families", "plugins", "tools")
FILES = ("pyproject.toml", "LICENSE", "Makefile", "README.md", "uninstalled.py")


def copied_checkout(folder: Path) -> Path:
    """What an install is made from, in a folder of its own."""
    for name in FOLDERS:
        shutil.copytree(
            CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in FILES:
        if (CHECKOUT / name).exists():
            shutil.copy(CHECKOUT / name, folder)
    return folder


def throwaway_environment(folder: Path, needed: Path, without: Collection[str] = ()) -> Path:
    """A new environment's Python. Everything installed here is linked in by way of `needed`, but
    TensorFold itself and the distributions and packages named in `without`."""
    venv.create(folder, with_pip=False, symlinks=True)
    needed.mkdir()
    places = [
        Path(place) for place in sys.path if place.endswith(("site-packages", "dist-packages"))
    ]
    for entry in (entry for place in places if place.is_dir() for entry in place.iterdir()):
        name, link = entry.name.partition("-")[0], needed / entry.name
        own = "tensorfold" in entry.name or entry.suffix == ".pth"
        if not own and name not in without and not link.is_symlink():
            link.symlink_to(entry)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(f"{needed}\n")
    return folder / "bin" / "python"
