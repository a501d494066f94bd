"""The menu: every hook that a plugin may implement. Each is called once, at start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tensorfold.core.backend_api import Backend
    from tensorfold.core.family_api import Family

PROJECT = "tensorfold"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Backends of this plugin. Called without torch: a backend says itself where it cannot run."""


@hookspec
def register_families() -> Sequence[Family]:  # type: ignore[empty-body]
    """Families of this plugin. Called without torch: a family imports it to build its model."""
