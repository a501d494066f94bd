"""The conformance kit: what tests of a plugin of one's own call, with no more than pytest around.

    from tensorfold.plugins.testing import check_engine, check_plugin

    def test_my_engine_keeps_the_promises():
        (backend,) = check_plugin(my_plugin).backends.values()
        check_engine(backend.value.engine(EngineOrder(settings=Settings())))

Each raises `PromiseBroken`, an `AssertionError`, in words. A backend with an op table of its own
has `tensorfold check --backend NAME` besides, and a family `tensorfold parity`.
"""

from tensorfold.plugins.testing.drafters import check_drafter
from tensorfold.plugins.testing.driving import PromiseBroken
from tensorfold.plugins.testing.engines import check_engine
from tensorfold.plugins.testing.modules import check_plugin

__all__ = ["PromiseBroken", "check_drafter", "check_engine", "check_plugin"]
