"""The menu: every hook that a plugin may implement. Each is called once, at start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tensorfold.core.backend_api import Backend
    from tensorfold.core.drafter_api import HostDrafter
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


@hookspec
def register_drafters() -> Sequence[HostDrafter]:  # type: ignore[empty-body]
    """Drafters of this plugin: guesses at coming tokens, made by the host. Called without torch.

    `--drafters` names those to use. What each may do is written in core/drafter_api.py.
    """
