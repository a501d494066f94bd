"""Brings the fake backend in through the plugin seam."""

from __future__ import annotations

from collections.abc import Sequence

from tensorfold.backends.fake.backend import FakeBackend
from tensorfold.core.backend_api import Backend
from tensorfold.plugins import hookimpl


@hookimpl
def register_backends() -> Sequence[Backend]:
    return [FakeBackend()]
