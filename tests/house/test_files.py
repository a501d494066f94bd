"""What every file of the tree keeps to."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("backends", "core", "families", "plugins", "tests", "tools")
MOST_LINES = 400
TEST_FOLDERS = {
    "bench",
    "cpu",
    "data",
    "device",
    "house",
    "interpreter",
    "null",
    "properties",
    "served",
}
TEXTS = {".py", ".md", ".toml", ".txt", ".jinja", ".html", ".css", ".js", ".yml"}

# A path of somebody's machine, or a word on how the project is tracked.
STRANGE = re.compile(r"(?<![\w.])/(work|root|home|Users|opt|mnt)/\w|\b(issue|PR) ?#?\d+\b")


def files() -> list[Path]:
    below = [path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*")]
    found = [path for path in [*CHECKOUT.iterdir(), *below] if path.is_file()]
    data = CHECKOUT / "tests" / "data"
    return [path for path in found if data not in path.parents and "__pycache__" not in path.parts]


def test_no_python_file_is_longer_than_a_few_screens() -> None:
    long = {}
    for path in files():
        lines = len(path.read_text().splitlines()) if path.suffix == ".py" else 0
        if lines > MOST_LINES:
            long[str(path.relative_to(CHECKOUT))] = lines
    assert long == {}


def test_every_folder_of_tests_says_what_its_tests_need() -> None:
    folders = {path.name for path in (CHECKOUT / "tests").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= TEST_FOLDERS
    loose = [path.name for path in (CHECKOUT / "tests").glob("test_*.py")]
    assert loose == []


def test_the_tree_speaks_of_the_project_alone() -> None:
    strange = []
    for path in files():
        if (path.suffix not in TEXTS and path.name != "Makefile") or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if STRANGE.search(line):
                strange.append(f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()}")
    assert strange == []
