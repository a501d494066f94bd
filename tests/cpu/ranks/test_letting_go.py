"""A rank on a GPU whose others are gone."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from tensorfold.core.errors import RankGone
from tensorfold.core.share import Share

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def test_nothing_is_asked_of_a_library_that_is_being_aborted() -> None:
    from tensorfold.backends.cuda_triton.ranks import NcclGroup

    asked: list[str] = []
    group = NcclGroup.__new__(NcclGroup)
    group.share, group.gone, group.memory = Share(rank=0, ranks=2), False, None

    def abort() -> None:
        # It may take as long as the process: whoever asks meanwhile would wait for it.
        with pytest.raises(RankGone):
            group.gather(torch.ones(2))
        asked.append("abort")

    group.forward = SimpleNamespace(
        abort=abort, _allgather_base=lambda *given: asked.append("gather")
    )
    group.now = None
    group.gather(torch.ones(2))
    group.abort()
    assert asked == ["gather", "abort"]
