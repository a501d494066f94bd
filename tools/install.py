"""Make the checkout's virtual environment, or bring it up to date.

The Makefile runs this with the interpreter that the environment is made of; it needs nothing but
the standard library. It installs TensorFold editable with the tools of its developers, at the
versions of `requirements.txt`.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
VENV = CHECKOUT / ".venv"
REQUIREMENTS = CHECKOUT / "tools" / "requirements.txt"
STAMP = VENV / "installed"
LOG = VENV / "install.log"
FOLDERS = ("backends", "core", "families", "plugins", "tools")

# With a build environment of its own pip would fetch the build tool once more.
STEPS = (
    ("--requirement", str(REQUIREMENTS)),
    ("--no-deps", "--no-build-isolation", "--editable", "."),
)


class InstallError(Exception):
    """An install that cannot succeed, told in one sentence."""


def wanted() -> str:
    """What the environment was made from, as a digest."""
    sources = (CHECKOUT / "pyproject.toml", REQUIREMENTS, Path(__file__))
    content = b"\0".join(source.read_bytes() for source in sources)
    return hashlib.sha256(content + str(CHECKOUT).encode()).hexdigest()


def main() -> int:
    digest = wanted()
    if STAMP.exists() and STAMP.read_text() == digest:
        STAMP.touch()
        return 0
    try:
        make_environment()
        print("Installing TensorFold and what it needs into .venv.", flush=True)
        LOG.write_text("")
        for step in STEPS:
            pip_install(*step)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 2
    link_packages()
    STAMP.write_text(digest)
    return 0


def make_environment() -> None:
    if (VENV / "bin" / "python").exists():
        return
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        words = (made.stdout + made.stderr).strip().splitlines()
        raise InstallError(f"Could not make {VENV} with {sys.executable}: {words[-1]}")


def pip_install(*arguments: str) -> None:
    """Run pip in the environment; its progress is shown to a terminal, its complaints are kept."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--retries", "2"]
    if not sys.stdout.isatty():
        command.append("--quiet")
    command += arguments
    done = subprocess.run(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, check=False)
    with LOG.open("a") as log:
        log.write(done.stderr)
    if done.returncode:
        raise InstallError(reason(done.stderr))


def reason(complaints: str) -> str:
    """One sentence out of what pip wrote."""
    missing = re.search(r"No matching distribution found for (\S+)", complaints)
    log = LOG.relative_to(CHECKOUT)
    if missing:
        return (
            f"Could not fetch {missing[1]}: is a package index reachable? "
            f"What pip said is in {log}."
        )
    errors = re.findall(r"^\s*error: (?!subprocess-exited)(.+)$", complaints, re.I | re.M)
    return f"pip failed ({errors[0] if errors else 'it gave no reason'}); see {log}."


def link_packages() -> None:
    """Lay the package out as links, for type checkers: they do not follow an editable install."""
    package = VENV / "checkout" / "tensorfold"
    package.mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        link = package / folder
        if not link.is_symlink():
            link.symlink_to(CHECKOUT / folder)


if __name__ == "__main__":
    sys.exit(main())
