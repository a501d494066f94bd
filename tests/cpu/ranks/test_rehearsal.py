"""A start's rehearsal of what a device will run is a rank's own affair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorfold.backends.cpu_reference.backend import device_of
from tensorfold.core.backend_api import EngineOrder, Place, Progress
from tensorfold.core.engine.open_engine import open_torch_engine
from tensorfold.core.settings import read
from tensorfold.core.share import Share
from tests.cpu.driving import CKPT, FAMILY
from tests.cpu.ranks.echo import Echo
from tests.cpu.ranks.running import SIZES


def exchanged(ahead: Callable[[Callable[[], None], Progress], None] | None) -> int:
    """How often a rank gathered while it opened."""
    place = Place(share=Share(rank=1, ranks=2), host="nowhere", port=1)
    order = EngineOrder(settings=read(SIZES, {}), folder=CKPT, family=FAMILY, place=place)
    group = Echo(place.share)
    device = replace(device_of(order), ahead=ahead, connect=lambda place: group)
    open_torch_engine(order, device)
    return group.gathers


def test_a_rank_that_rehearses_asks_no_other_one() -> None:
    rehearsed = []

    def ahead(rehearse: Callable[[], None], progress: Progress) -> None:
        rehearse()
        rehearsed.append(rehearse)

    # Another rank may be on a host that rehearses nothing.
    assert exchanged(ahead) == exchanged(None) > 0
    assert rehearsed
