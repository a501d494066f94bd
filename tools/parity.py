"""`tensorfold parity DIR`: a family's arithmetic against a golden, whole and in every cut.

Runs `DIR/ckpt` and compares with `DIR/golden.safetensors`. Prints the largest difference of logits
and hidden rows, and whether selections and states agree; what the golden lacks is told as not
compared and never counts. The exit status is 0 only if something was compared and all of it agrees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine import batch
from tensorfold.core.engine.replay import Replayed, replay
from tensorfold.core.engine.state import allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Cut, Family, Golden, Mode
from tensorfold.core.settings import read
from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser
from tensorfold.tools.models import find_model

WINDOW_ROWS = 8


@dataclass(kw_only=True, slots=True)
class Found:
    """What one cut showed: differences by name, and selections or states that disagree."""

    differences: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    compared: set[str] = field(default_factory=set)
    selections: set[str] = field(default_factory=set)
    states: set[str] = field(default_factory=set)


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="tensorfold parity", description=__doc__)
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="holds ckpt and golden.safetensors"
    )
    parser.add_argument("--backend", default="cpu-reference", help="[cpu-reference]")
    options = parser.parse_args(arguments)
    return parity(options.folder, options.backend, Console())


def parity(folder: Path, backend: str, console: Console) -> int:
    golden = read_golden(folder / "golden.safetensors")
    if "ids" not in golden:
        raise StartError(f"{folder / 'golden.safetensors'} holds no ids to run")
    tokens = golden["ids"].flatten().tolist()
    family = family_of(folder / "ckpt", backend)
    rules = family.golden()
    agreed, compared = True, set[str]()
    for mode in rules.MODES:
        engine = open_engine(folder / "ckpt", backend, family, len(tokens), mode.numerics)
        agrees, names = compare_mode(engine, family, mode, tokens, golden, console)
        agreed, compared = agreed and agrees, compared | names
    config = engine.model.config  # type: ignore[attr-defined]
    missing = [name for name in rules.names(config) if name not in golden]
    if missing:
        console.print("not compared, the golden lacks it: " + ", ".join(missing))
    unknown = sorted(set(golden) - {"ids", *rules.names(config)})
    if unknown:
        console.print("not compared, this model has no such part: " + ", ".join(unknown))
    if not compared:
        console.print("nothing was compared")
        return 1
    allowed = " and ".join(f"{mode.tolerance:.0e} {mode.numerics}".strip() for mode in rules.MODES)
    console.print(f"{'agrees' if agreed else 'DISAGREES'}, tolerance {allowed}")
    return 0 if agreed else 1


def compare_mode(
    engine: TorchEngine,
    family: Family,
    mode: Mode,
    tokens: Sequence[int],
    golden: Mapping[str, Tensor],
    console: Console,
) -> tuple[bool, set[str]]:
    """Every cut in one of the family's arithmetics: whether all agrees, and what was compared."""
    rules = family.golden()
    device = engine.storage.table.device
    golden = {name: tensor.to(device) for name, tensor in golden.items()}
    table = Table("cut", "logits", "hidden", "selections", "states", title=mode.numerics or None)
    agreed, compared = True, set[str]()
    for name, cuts in rules.cuts(len(tokens)).items():
        found = compare(engine, rules, mode, tokens, cuts, golden)
        table.add_row(name, *described(found))
        compared |= found.compared
        agreed = agreed and not found.wrong and within(found, mode.tolerance)
        for wrong in found.wrong:
            console.print(f"{name}: {wrong}")
    console.print(table)
    if "mtp_logits" in golden:
        difference = compare_draft(engine, family, rules, tokens, golden)
        console.print(f"mtp_logits: largest difference {difference:.1e}")
        compared.add("mtp_logits")
        agreed = agreed and difference <= mode.tolerance
    return agreed, compared


def read_golden(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise StartError(f"there is no golden at {path}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise StartError(f"{path} is not a readable safetensors file: {error}") from None


def family_of(folder: Path, backend_name: str) -> Family:
    installed = discover()
    backend = choose_backend(installed, backend_name)
    if not backend.needs_family:
        raise StartError(f"backend {backend_name} runs no family, so it has no parity")
    family = find_model(installed, backend, str(folder)).family
    assert family is not None, folder
    return family


def open_engine(
    folder: Path, backend_name: str, family: Family, length: int, numerics: str
) -> TorchEngine:
    backend = choose_backend(discover(), backend_name)
    chunk = -(-length // family.grid) * family.grid
    flags = {
        "lanes": 2,
        "context": chunk,
        "chunk_rows": chunk,
        "window_rows": WINDOW_ROWS,
        "numerics": numerics,
        # A golden is of float32, and its differences are the ops' own.
        "dtype": "float32",
        "eager": True,
    }
    engine = backend.engine(EngineOrder(settings=read(flags, {}), folder=folder, family=family))
    assert isinstance(engine, TorchEngine), type(engine)
    return engine


def compare(
    engine: TorchEngine,
    rules: Golden,
    mode: Mode,
    tokens: Sequence[int],
    cuts: Sequence[Cut],
    golden: Mapping[str, Tensor],
) -> Found:
    found = Found()
    picked: dict[str, list[set[Any]]] = {}

    def collect(model: Any, rows: int) -> None:
        for name, sets in rules.selections(model, rows).items():
            picked.setdefault(name, []).extend(sets)

    ran = replay(engine, tokens, cuts, collect)
    for kind, name in (("logits", mode.logits), ("hidden", "hidden")):
        if name in golden:
            found.differences[kind] = distance(getattr(ran, kind), golden[name])
            found.compared.add(name)
    for name, sets in picked.items():
        if name in golden:
            wanted = rules.as_sets(name, golden[name])
            found.compared.add(name)
            found.selections.add(name)
            if len(wanted) != len(sets):
                found.wrong.append(f"{name}: {len(wanted)} selections for {len(sets)} rows")
                continue
            bad = sum(mine != theirs for mine, theirs in zip(sets, wanted, strict=True))
            if bad:
                found.wrong.append(f"{name}: {bad} of {len(wanted)} selections differ")
    compare_states(engine, rules, mode, ran, golden, len(tokens), found)
    return found


def compare_states(
    engine: TorchEngine,
    rules: Golden,
    mode: Mode,
    ran: Replayed,
    golden: Mapping[str, Tensor],
    length: int,
    found: Found,
) -> None:
    for name, (mine, theirs) in rules.states(engine.model, ran.state, golden, length).items():
        found.compared.add(name)
        found.states.add(name)
        difference = distance(mine, theirs)
        if not difference <= mode.tolerance:
            found.wrong.append(f"{name}: state differs by {difference:.1e}")


def distance(mine: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference; infinite where shapes differ or anything is not finite."""
    if mine.shape != theirs.shape:
        return float("inf")
    worst = float((mine.double() - theirs.double()).abs().max())
    return worst if worst == worst else float("inf")


def compare_draft(
    engine: TorchEngine,
    family: Family,
    rules: Golden,
    tokens: Sequence[int],
    golden: Mapping[str, Tensor],
) -> float:
    """The draft layer's logits over our own hidden rows."""
    import torch

    config = engine.model.config  # type: ignore[attr-defined]
    rows = len(tokens) - 1
    with torch.inference_mode():
        ran = replay(engine, tokens, [Cut("prompt", len(tokens))])
        spec = family.state_spec(config, window_rows=WINDOW_ROWS, drafts=True)
        storage = allocate(
            spec, lanes=1, context=engine.info.context, kept_bytes=0, device=ran.hidden.device
        )
        seat = storage.claim(rows)
        built = batch.build(
            [batch.Run(tokens[1:], seat.lane, 0)],
            storage,
            prompt=True,
            tile=engine.tile,
            context=engine.info.context,
        )
        hidden_RD = ran.hidden.new_zeros(len(built.ids_R), ran.hidden.shape[1])
        hidden_RD[:rows] = ran.hidden[:rows]
        logits = rules.draft_logits(engine.model, storage.buffers, built, hidden_RD)[:rows]
    return distance(logits, golden["mtp_logits"])


def described(found: Found) -> list[str]:
    def number(name: str) -> str:
        return f"{found.differences[name]:.1e}" if name in found.differences else "not compared"

    def words(names: set[str]) -> str:
        if not names:
            return "not compared"
        wrong = {wrong.split(":")[0] for wrong in found.wrong}
        return "differ" if names & wrong else "agree"

    return [number("logits"), number("hidden"), words(found.selections), words(found.states)]


def within(found: Found, tolerance: float) -> bool:
    return all(difference <= tolerance for difference in found.differences.values())
