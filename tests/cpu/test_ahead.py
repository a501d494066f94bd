"""What the kernels of a start are, told without a GPU: Triton's target is one in name alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tensorfold.core.backend_api import EngineOrder, no_progress
from tensorfold.core.engine import batch, sampling
from tensorfold.core.engine.agreement import prompt_row
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.group import Unheard, ranked
from tensorfold.core.engine.index_split import split_of
from tensorfold.core.engine.open_engine import Device, Loaded, load, rehearse, sizes_of
from tensorfold.core.engine.rehearsal import zeroed
from tensorfold.core.engine.sampling import Draw
from tensorfold.core.engine.state import Storage, allocate
from tensorfold.core.engine_api import Sampling
from tensorfold.core.index_shares import HOW
from tensorfold.core.settings import read
from tensorfold.core.share import Share
from tensorfold.plugins.manager import discover
from tensorfold.tools.bench_decode import RAW
from tensorfold.tools.decode.engines import RandomSource, write_token_map
from tests.drawing import preferred

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

TARGET = ("cuda", 90, 32)
CHUNK = 2048
# Rows that no start has run: one more or less than a tile, odd numbers, several chunks' ends.
UNSEEN = (3, 18, 33, 67, 131, 190, 257, 301, 701, 1025, 1500, 2047)


class Named:
    """A driver of a GPU that is not here: kernels can be told, not run."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*TARGET)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture(autouse=True)
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import triton

    from tensorfold.backends.cuda_triton.kernels import experts, many, products

    for module in (experts, many, products):
        monkeypatch.setattr(module, "num_programs", lambda device: 132)
    triton.runtime.driver.set_active(Named())
    try:
        yield
    finally:
        triton.runtime.driver.set_active(None)


def loaded_of(family: str, share: Share) -> tuple[Loaded, Device, Storage, Any]:
    from tensorfold.backends.cuda_triton.backend import TILE, graph
    from tensorfold.backends.cuda_triton.table import candidates

    offer = discover().families[family].value
    flags = {"lanes": 4, "context": 4096, "chunk_rows": CHUNK, "window_rows": 3}
    order = EngineOrder(settings=read(flags, {}), family=offer, progress=no_progress)
    device = Device(
        backend="named",
        candidates=candidates(),
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        tile=TILE,
        free_bytes=lambda: 1 << 62,
        bits={},
        graph=graph,
    )
    raw = RAW[family, "tiny"](5)
    # Whatever has a part for every rank.
    raw["text_config"]["n_routed_experts"] = 8
    with TemporaryDirectory() as folder:
        write_token_map(raw, Path(folder))
        loaded = load(order, RandomSource(raw, Path(folder)), offer, device, share)
    storage = allocate(
        loaded.spec,
        lanes=loaded.lanes,
        context=loaded.context,
        kept_bytes=0,
        device=torch.device("cpu"),
    )
    ops = preferred(candidates())
    ops = ranked(ops, Unheard(share) if share.ranks > 1 else None, loaded.vocab_size)
    return loaded, device, storage, ops


@pytest.mark.parametrize("family", ["glm53", "dsv41"])
@torch.inference_mode()
def test_a_prompt_of_any_length_launches_what_the_start_did(family: str) -> None:
    from tensorfold.backends.cuda_triton.ahead import called_for

    loaded, device, storage, ops = loaded_of(family, Share())
    started = set(map(repr, called_for(lambda: rehearse(loaded, device, storage, ops))))
    model = loaded.family.model(loaded.config, loaded.weights, zeroed(ops), storage.buffers)
    for rows in UNSEEN:
        prompt = [1] * rows
        found = called_for(
            lambda prompt=prompt: prompt_row(  # type: ignore[misc]
                model, storage, sizes_of(loaded, device), prompt
            )
        )
        later = {one.name for one in found if repr(one) not in started}
        assert not later, (rows, later)


@pytest.mark.parametrize("family", ["glm53", "dsv41"])
@torch.inference_mode()
def test_a_chunk_whose_index_is_split_launches_what_the_start_did(family: str) -> None:
    from tensorfold.backends.cuda_triton.ahead import called_for

    share = Share(rank=1, ranks=2)
    loaded, device, storage, ops = loaded_of(family, share)
    started = set(map(repr, called_for(lambda: rehearse(loaded, device, storage, ops))))
    model = loaded.family.model(loaded.config, loaded.weights, zeroed(ops), storage.buffers)
    seat = storage.claim(loaded.context)

    def chunk(rows: int, how: str) -> None:
        run = Run([1] * rows, seat.lane, CHUNK)
        built = batch.build([run], storage, prompt=True, tile=device.tile, context=loaded.context)
        split = split_of(how, CHUNK, rows, len(built.ids_R), share)
        model.prompt(built._replace(split=split))

    for rows in UNSEEN[::2]:
        found = called_for(lambda rows=rows: [chunk(rows, how) for how in HOW])  # type: ignore[misc]
        later = {one.name for one in found if repr(one) not in started}
        assert not later, (rows, later)


@pytest.mark.parametrize("family", ["glm53", "dsv41"])
@torch.inference_mode()
def test_a_row_that_is_drawn_in_any_way_launches_what_the_start_did(family: str) -> None:
    from tensorfold.backends.cuda_triton.ahead import called_for

    loaded, device, storage, ops = loaded_of(family, Share())
    started = set(map(repr, called_for(lambda: rehearse(loaded, device, storage, ops))))
    ways = [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_k=40),
        Sampling(temperature=1.3, top_p=0.9, min_p=0.02),
    ]

    def drawn(rows: int, dtype: torch.dtype) -> None:
        logits_SV = torch.zeros(rows, loaded.vocab_size, dtype=dtype)
        for way in ways:
            draw = Draw(sampling=way, seed=1, position=2, mask=b"\xff" * loaded.vocab_size)
            sampling.draw(zeroed(ops), logits_SV, [draw] * rows)
        sampling.logprobs(zeroed(ops), logits_SV[0], 3, 2)

    for rows in (1, 2, 5, 8):
        for dtype in (torch.bfloat16, torch.float32):
            found = called_for(lambda rows=rows, dtype=dtype: drawn(rows, dtype))  # type: ignore[misc]
            assert found, "nothing was launched"
            later = {one.name for one in found if repr(one) not in started}
            assert not later, (rows, dtype, later)


@torch.inference_mode()
def test_kernels_made_ahead_are_found_by_their_launches(tmp_path: Path) -> None:
    from triton import knobs

    from tensorfold.backends.cuda_triton.ahead import called_for, make
    from tensorfold.backends.cuda_triton.kernels.rms_norm import norm_rows, rms_norm

    def launch() -> None:
        rms_norm(torch.zeros(3, 64), torch.ones(64), 1e-6)

    (wanted,) = called_for(launch)
    hits = []
    with knobs.cache.scope(), knobs.compilation.scope():
        knobs.cache.dir = str(tmp_path)
        make(*wanted, TARGET, str(tmp_path))
        knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
        # As a launch compiles it, but for the launch itself.
        x, out = torch.zeros(3, 64), torch.zeros(3, 64)
        norm_rows.warmup(
            x, torch.ones(64), out, 3, 1, 64, 0, 64, 1e-6,
            WEIGHTED=True, ROWS=64, WIDTH=64, num_warps=4, grid=(1,),
        )  # fmt: skip
    assert hits == [True]


@torch.inference_mode()
def test_a_kernel_scheduled_by_hand_is_made_ahead(tmp_path: Path) -> None:
    from tensorfold.backends.cuda_triton.ahead import called_for, make
    from tensorfold.backends.cuda_triton.kernels import kda_hopper

    def launch() -> None:
        rows = torch.zeros(64, 2, kda_hopper.KEY, dtype=torch.bfloat16)
        places = torch.zeros(1, 64, dtype=torch.int64)
        finer = torch.zeros(64, 2, kda_hopper.KEY)
        state = torch.zeros(1, 2, kda_hopper.KEY, kda_hopper.KEY)
        kda_hopper.launch((rows, rows, places, places[0, :1], *[finer] * 4, state, rows, 64, 1))

    (wanted,) = called_for(launch)
    make(*wanted, TARGET, str(tmp_path))
    assert list(tmp_path.rglob("across.cubin"))


@torch.inference_mode()
def test_many_picks_of_any_number_launch_the_same_kernels() -> None:
    from tensorfold.backends.cuda_triton.ahead import called_for
    from tensorfold.backends.cuda_triton.kernels.experts import experts

    def launched(rows: int) -> set[str]:
        x_RD = torch.zeros(rows, 256, dtype=torch.bfloat16)
        ids_RK = torch.zeros(rows, 4, dtype=torch.int64)
        weight_RK = torch.zeros(rows, 4, dtype=torch.bfloat16)
        gate_up_EDI = torch.zeros(8, 256, 256, dtype=torch.bfloat16)
        down_EID = torch.zeros(8, 128, 256, dtype=torch.bfloat16)

        def launch() -> None:
            experts(x_RD, ids_RK, weight_RK, gate_up_EDI, down_EID, 1.0, 0, 8)

        return set(map(repr, called_for(launch)))

    assert launched(256) == launched(288) == launched(317)


# Of a program on the smallest of the GPUs that are served well.
SHARED_BYTES = 227 << 10


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@torch.inference_mode()
def test_many_rows_of_a_ranks_parts_of_a_sum_fit_a_program(parts: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tensorfold.backends.cuda_triton.ahead import called_for
    from tensorfold.backends.cuda_triton.kernels import linear_parts, many

    w_PKN = torch.zeros(parts, 1024, 4096, dtype=torch.bfloat16)

    def launch() -> None:
        for rows in (129, 512, 2048):
            x_RK = torch.zeros(rows, parts * 1024, dtype=torch.bfloat16)
            linear_parts.linear_parts(x_RK, w_PKN, dtype=torch.float32)

    found = called_for(launch)
    assert found
    for one in found:
        kernel = getattr(many, one.name)
        source = ASTSource(kernel, one.signature, one.constants, one.attributes)
        made = triton.compile(source, target=GPUTarget(*TARGET), options=dict(one.options))
        assert made.metadata.shared <= SHARED_BYTES, one


def test_compilers_keep_what_they_make_where_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    from tensorfold.backends.cuda_triton.backend import keep_compiled

    for before, after in (
        (None, "here/inductor"),
        (default_cache_dir(), "here/inductor"),
        ("a", "a"),
    ):
        if before is None:
            monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        else:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", before)
        monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
        keep_compiled(read({"cache_dir": "here"}, {}))
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == after
        assert os.environ["TRITON_CACHE_DIR"] == "here/triton"
