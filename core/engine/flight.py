"""A call's work on its way: launched at once where the device has a queue, else where it lands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from tensorfold.core.engine_api import nobody

if TYPE_CHECKING:
    from tensorfold.core.engine.torch_engine import TorchEngine

Result = TypeVar("Result")


class OpenFlight(Generic[Result]):
    """A flight: `launch` gives what lands it. It is called at once where the device has a queue."""

    def __init__(
        self, engine: TorchEngine, launch: Callable[[], Callable[[], list[Result]]]
    ) -> None:
        self.engine = engine
        self.launch = launch
        self.finish: Callable[[], list[Result]] | None = None
        if engine.runner.queued:
            self.finish = launch()

    def land(self, waits: Callable[[], bool] = nobody) -> Sequence[Result]:
        assert self.engine.flying is self, "this flight has landed"
        self.engine.flying = None
        self.engine.ahead.waits = waits
        finish = self.finish or self.launch()
        return finish()
