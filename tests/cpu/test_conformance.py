"""Both families on the CPU keep the promises that the conformance kit looks at."""

from __future__ import annotations

import pytest

from tensorfold.backends.cpu_reference import plugin as cpu_plugin
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.settings import Settings
from tensorfold.families.dsv41 import plugin as dsv41
from tensorfold.families.glm53 import plugin as glm53
from tensorfold.plugins.testing import check_engine, check_plugin


@pytest.mark.parametrize(("module", "drafts"), [(glm53, 2), (dsv41, 5)], ids=["glm53", "dsv41"])
def test_a_bundled_model_keeps_every_promise(module: object, drafts: int) -> None:
    (backend,) = check_plugin(cpu_plugin).backends.values()
    (family,) = (found.value for found in check_plugin(module).families.values())
    (folder,) = family.bundled().values()
    settings = Settings(
        lanes=4, context=320, chunk_rows=128, window_rows=6, drafts=drafts, kept_bytes=1 << 20
    )
    engine = backend.value.engine(EngineOrder(settings=settings, folder=folder, family=family))
    found = check_engine(engine)
    engine.shutdown()
    assert all(found.values()), found
