"""Opening a torch engine: checkpoint, weights, storage, the load-time check, `Info`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tensorfold.core.backend_api import EngineOrder, Place, Progress
from tensorfold.core.checkpoint import identity
from tensorfold.core.checkpoint.load import elements
from tensorfold.core.draft_settings import head_drafts
from tensorfold.core.engine import agreement, checks, meeting, optable
from tensorfold.core.engine.compile import fix_sizes
from tensorfold.core.engine.group import Group, Unheard, ranked, share_of
from tensorfold.core.engine.optable import Candidate, Candidates
from tensorfold.core.engine.probe import Sizes, exercise, model_calls
from tensorfold.core.engine.ranks import until_ready
from tensorfold.core.engine.rehearsal import draws, lengths, zeroed
from tensorfold.core.engine.room import fit, held_by_rank
from tensorfold.core.engine.round_costs import time_rounds
from tensorfold.core.engine.runner import Rounds, Runner
from tensorfold.core.engine.shares import shares_hold
from tensorfold.core.engine.source import FromFolder, Source
from tensorfold.core.engine.state import Storage, allocate
from tensorfold.core.engine.table_files import TableFile
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine.warming import warm
from tensorfold.core.engine_api import Info
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import CutProduct, Family, Model
from tensorfold.core.fill_settings import fill_fields
from tensorfold.core.ops import Ops
from tensorfold.core.settings import Settings
from tensorfold.core.share import SAME_BITS, WIDTH, Share
from tensorfold.core.state_spec import SIZES, StateSpec

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What a torch backend brings.

    `tile` is its row tile. `free_bytes` tells what its memory has left, of which a forward may take
    `spare_bytes` beside weights and state. `bits` are further facts that its bits depend on.
    `graph` turns a rank's op table into one that graph capture accepts, and gives the compiler of a
    layer; it is used when the order asks for compiled forwards, or does not say and the device
    `compiles`. `connect` meets other ranks, where it can. `runner` makes what runs the engine's
    steps on this device's queue; none runs them at once. `verdict` judges a library product on a
    call, `agree` a compiled or captured model on its sizes. `ahead` is given a function that calls
    the ops of a start, and makes ready what they will run.
    """

    backend: str
    candidates: Candidates
    device: torch.device
    dtype: torch.dtype
    tile: int
    free_bytes: Callable[[], int]
    bits: dict[str, str | int | float | bool]
    graph: Callable[[Ops, int], tuple[Ops, Compile]]
    spare_bytes: int = 0
    connect: Callable[[Place], Group] | None = None
    runner: Callable[[Rounds], Runner] | None = None
    compiles: bool = False
    verdict: Callable[..., bool] = checks.holds
    agree: Callable[..., agreement.Found] = agreement.sizes_agree
    ahead: Callable[[Callable[[], None], Progress], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A family's config and weights, of what this rank holds, and the engine's sizes."""

    family: Family
    config: Any
    vocab_size: int
    cuts: Sequence[CutProduct]
    weights: Any
    weight_bytes: int
    source: Source
    spec: StateSpec
    share: Share
    lanes: int
    context: int
    chunk_rows: int
    window_rows: int
    drafts: int
    shortcut: bool
    files: Sequence[TableFile]


def compiles(order: EngineOrder, device: Device) -> bool:
    """Whether forwards are compiled."""
    settings = order.settings
    if settings.eager and settings.compile:
        raise StartError("--eager runs nothing compiled, and --compile asks for it")
    told = settings.compile or "compile" in settings.given
    return settings.compile if told else device.compiles and not settings.eager


@until_ready()
def open_torch_engine(
    order: EngineOrder, device: Device, source: Source | None = None
) -> TorchEngine:
    """Raises `StartError` for whatever keeps the engine from opening, on every rank of it.

    `source` is where config and weights come from: the order's folder, unless given.
    """
    family = order.family
    assert family is not None
    if source is None:
        assert order.folder is not None
        source = FromFolder(order.folder)
    optable.complete(device.candidates)
    compiled_too = compiles(order, device)
    group = meet(order, device)
    meeting.compare(group, meeting.settings_of(order.settings))
    with torch.inference_mode():
        loaded = meeting.together(
            group, lambda: load(order, source, family, device, share_of(group))
        )
        kept_bytes = order.settings.kept_bytes
        storage = allocate(
            loaded.spec,
            lanes=loaded.lanes,
            context=loaded.context,
            kept_bytes=kept_bytes,
            device=device.device,
        )
        order.progress("checking ops", 0, 0)
        chosen, found = choose_ops(loaded, storage, device, group)
        found |= {} if group is None else group.checks
        own = optable.table({name: candidate.call for name, candidate in chosen.items()})
        sums = {name: candidate.unrounded or candidate.call for name, candidate in chosen.items()}
        table = partial(ranked, own, vocab_size=loaded.vocab_size, unrounded=optable.table(sums))
        if device.ahead is not None:
            unheard = table(group if group is None else Unheard(group.share))
            device.ahead(lambda: rehearse(loaded, device, storage, unheard), order.progress)
        ops = drawing = table(group)
        compiled: Compile | None = None
        if compiled_too:
            ops, compiled = device.graph(ops, share_of(group).ranks)
        model = loaded.family.model(loaded.config, loaded.weights, ops, storage.buffers, compiled)
        if compiled is not None:
            order.progress("compiling", 0, 0)
            fix_sizes((loaded.weights, dict(storage.buffers), storage.table))
            exercise(model, storage, sizes_of(loaded, device))
        if compiled is not None or device.runner is not None:
            order.progress("checking sizes", 0, 0)
            found |= agreed(loaded, device, model, storage)
        drafter = None
        if loaded.drafts:
            drafter = loaded.family.drafter(
                loaded.config, loaded.weights, ops, storage.buffers, model
            )
    info = describe(order, loaded, device, chosen, found, storage, group)
    runner = None
    if device.runner is not None:
        runner = device.runner(Rounds(info.round_rows, info.window_rows, not order.settings.eager))
    engine = TorchEngine(
        info=info,
        model=model,
        ops=drawing,
        storage=storage,
        tile=device.tile,
        drafter=drafter,
        runner=runner,
        group=group,
        shortcut=loaded.shortcut,
        files=loaded.files,
    )
    engine.ahead.may = meeting.all_hold(group, engine.ahead.may)
    if runner is not None:
        warm(engine, order.progress)
    time_rounds(engine, order)
    return engine


def rehearse(loaded: Loaded, device: Device, storage: Storage, ops: Ops) -> None:
    """The forwards of a start, and what draws tokens, with outputs that are zero."""
    ops = zeroed(ops)
    model = loaded.family.model(loaded.config, loaded.weights, ops, storage.buffers)
    sizes = sizes_of(loaded, device)
    exercise(model, storage, sizes)
    agree(loaded, device, model, storage)
    lengths(model, storage, sizes, loaded.chunk_rows)
    for dtype in {device.dtype, torch.float32}:
        draws(ops, torch.zeros(1, loaded.vocab_size, dtype=dtype, device=device.device))
    storage.peak = 0


def agree(loaded: Loaded, device: Device, model: Model, storage: Storage) -> agreement.Found:
    return device.agree(
        model,
        storage,
        sizes_of(loaded, device),
        most_rows=loaded.lanes * loaded.window_rows,
        most_prompt=loaded.chunk_rows,
    )


def agreed(
    loaded: Loaded, device: Device, model: Model, storage: Storage
) -> dict[str, bool | None]:
    """The check of every size of a forward; raises `StartError` where it fails."""
    found = agree(loaded, device, model, storage)
    if found.words():
        raise StartError(f"a row's bits are not those of other sizes in {found.words()}")
    return found.checks()


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def meet(order: EngineOrder, device: Device) -> Group | None:
    """The other ranks, or none where there are none."""
    if order.place is None:
        return None
    if device.connect is None:
        raise StartError(f"backend {device.backend} runs on one rank")
    return device.connect(replace(order.place, seconds=order.settings.meet_timeout))


def by_width(settings: Settings, share: Share) -> bool:
    """Whether ranks hold a part of each routed expert; one rank holds all of it in any cut."""
    return share.ranks > 1 and settings.expert_cut == WIDTH


def load(
    order: EngineOrder, source: Source, family: Family, device: Device, share: Share
) -> Loaded:
    settings = order.settings
    config = family.config(source.config(), settings.numerics, settings.expert_cut)
    context = settings.context or family.context(config)
    if context > family.context(config):
        raise StartError(
            f"--context is {context}, more than the {family.context(config)} tokens that "
            "this model was made for"
        )
    if settings.chunk_rows % family.grid:
        raise StartError(
            f"--chunk-rows is {settings.chunk_rows}, not a multiple of {family.grid}, where "
            "this family's prompts may be cut"
        )
    drafts = head_drafts(settings, family.drafts(config))
    own = family.shared(config, share) if share.ranks > 1 else config
    spec = family.state_spec(own, window_rows=settings.window_rows, drafts=drafts > 0)
    spec = replace(spec, dtype=name_of(device.dtype))
    specs = family.tensors(config)
    source.check(specs, family.ignored)
    weight_bytes = sum(
        elements(one, share) * SIZES[one.dtype or name_of(device.dtype)]
        for one in specs
        if not one.table
    )
    if settings.tables == "device":
        weight_bytes += source.table_bytes(specs)
    free = device.free_bytes() - device.spare_bytes - weight_bytes
    fit(spec, settings.lanes, context, settings.kept_bytes, free)
    tensors = source.load(
        specs,
        family.ignored,
        dtype=device.dtype,
        device=device.device,
        progress=order.progress,
        tables=settings.tables,
        share=share,
    )
    return Loaded(
        family=family,
        config=own,
        vocab_size=family.vocab_size(config),
        # By width no share is asked to have the whole's bits: sums run in an order of their own.
        cuts=() if by_width(settings, share) else family.cut_products(config),
        weights=family.weights(own, tensors, source.folder),
        weight_bytes=weight_bytes,
        source=source,
        spec=spec,
        share=share,
        lanes=settings.lanes,
        context=context,
        chunk_rows=settings.chunk_rows,
        window_rows=settings.window_rows,
        drafts=drafts,
        shortcut=settings.prompt_shortcut,
        files=source.table_files(specs) if settings.tables == "disk" else (),
    )


def choose_ops(
    loaded: Loaded, storage: Storage, device: Device, group: Group | None
) -> tuple[dict[str, Candidate], dict[str, bool | None]]:
    """Each op's candidate that passes the load-time check on this model's own calls, everywhere."""

    def model(ops: Ops) -> Model:
        ops = ranked(ops, group, loaded.vocab_size)
        return loaded.family.model(loaded.config, loaded.weights, ops, storage.buffers)

    calls = model_calls(model, device.candidates, storage, sizes_of(loaded, device))
    return checks.choose(
        device.candidates,
        calls,
        loaded.context,
        device.verdict,
        partial(meeting.all_hold, group),
        partial(shares_hold, loaded.cuts, share_of(group).ranks),
    )


def sizes_of(loaded: Loaded, device: Device) -> Sizes:
    return Sizes(
        tile=device.tile,
        context=loaded.context,
        vocab_size=loaded.vocab_size,
        window_rows=loaded.window_rows,
        shortcut=loaded.shortcut,
        share=loaded.share if loaded.family.index_split else Share(),
    )


def file_digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the files that are there."""
    present = [folder / name for name in names if (folder / name).is_file()]
    return {f"file:{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in present}


def describe(
    order: EngineOrder,
    loaded: Loaded,
    device: Device,
    chosen: dict[str, Candidate],
    found: dict[str, bool | None],
    storage: Storage,
    group: Group | None,
) -> Info:
    labels = {name: candidate.label for name, candidate in chosen.items()}
    bits: dict[str, str | int | float | bool] = {
        "backend": device.backend,
        "device": device.device.type,
        "dtype": name_of(device.dtype),
        "compiled": compiles(order, device),
        # What is in effect: a choice spelled out gives the bits of the same one left unsaid.
        "numerics": loaded.family.numerics(loaded.config),
        "torch": torch.__version__,
        **device.bits,
        **{f"op:{name}": label for name, label in labels.items()},
        **file_digests(loaded.source.folder, loaded.family.files),
    }
    ranks = share_of(group).ranks
    alike = all(held is not False for name, held in found.items() if name.startswith("ranks:"))
    cut = by_width(order.settings, share_of(group))
    if ranks not in SAME_BITS or not alike or cut:
        # Sums run in another tree, or a share has other bits than the whole.
        bits["ranks"] = ranks
    if cut:
        bits["expert_cut"] = WIDTH
    cache = Path(order.settings.cache_dir) if order.settings.cache_dir else None
    settings = order.settings
    contents = meeting.together(group, lambda: loaded.source.contents(cache, order.progress))
    meeting.compare(group, {**bits, **contents.facts()})
    passed_over = loaded.source.skipped(loaded.family.ignored)
    return Info(
        backend=device.backend,
        family=loaded.family.name,
        device=str(device.device),
        dtype=str(bits["dtype"]),
        identity=identity(bits, contents),
        vocab_size=loaded.vocab_size,
        lanes=loaded.lanes,
        context=loaded.context,
        chunk_rows=loaded.chunk_rows,
        round_rows=loaded.lanes * loaded.window_rows,
        window_rows=loaded.window_rows,
        grid=loaded.family.grid,
        ranks=ranks,
        pack_rows=loaded.chunk_rows,
        drafts=loaded.drafts,
        skipped={part: one._asdict() for part, one in passed_over.items()},
        rank_bytes=held_by_rank(group, loaded.weight_bytes, storage, device.free_bytes()),
        bytes_per_token=loaded.spec.bytes_per_token(),
        bytes_per_stream=loaded.spec.bytes_per_lane(),
        checks=found,
        ops=labels,
        **fill_fields(
            settings,
            context=loaded.context,
            chunk_rows=loaded.chunk_rows,
            passes=0,
            pack_rows=loaded.chunk_rows,
        ),
    )
