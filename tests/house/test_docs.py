"""The README and the pages of docs/ name only what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorfold.core.settings import switches
from tensorfold.tools.cli import TOOLS

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
# Flags of other programs that the pages start.
OTHERS = {
    "--dist",
    "--hypothesis-profile",
    "--hypothesis-seed",
    "--nproc-per-node",
    "--numprocesses",
}


def known_flags() -> set[str]:
    """The flags of every tool, those of `tensorfold serve` among them."""
    found = set(OTHERS)
    for name, (entry, default) in switches().items():
        flag = "--" + name.replace("_", "-")
        found.add(flag)
        if isinstance(default, bool) or entry.off is not None:
            found.add("--no-" + flag[2:])
    for path in (CHECKOUT / "tools").rglob("*.py"):
        found.update(re.findall(r'"(--[a-z][a-z-]*)"', path.read_text("utf-8")))
    return found


@pytest.fixture(params=PAGES, ids=lambda path: path.name)
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    gone = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert gone == []


def test_every_variable_is_a_setting(page: Path) -> None:
    named = set(re.findall(r"\bTF_[A-Z_]+\b", page.read_text("utf-8")))
    assert named <= {entry.env for entry, _ in switches().values()}


def test_every_flag_is_taken_by_some_tool(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text("utf-8")))
    assert named - known_flags() == set()


def test_every_command_and_module_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    commands = re.findall(r"(?:^|`|bin/)tensorfold ([a-z]+)", text, re.MULTILINE)
    assert {*commands} <= {*TOOLS, "version"}
    for module in re.findall(r"\btensorfold((?:\.\w+)+)", text):
        path = CHECKOUT.joinpath(*module.split(".")[1:])
        assert path.with_suffix(".py").is_file() or path.is_dir(), module


def test_every_file_of_the_tree_that_is_named_is_there(page: Path) -> None:
    folders = "backends|core|docs|families|plugins|tests|tools"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text("utf-8"))
    gone = [name for name in named if not (CHECKOUT / name).exists()]
    assert gone == []


def test_every_target_of_make_is_there(page: Path) -> None:
    makefile = (CHECKOUT / "Makefile").read_text("utf-8")
    targets = re.findall(r"(?:^|`)make ([a-z]+)", page.read_text("utf-8"), re.MULTILINE)
    gone = [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)]
    assert gone == []
