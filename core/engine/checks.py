"""The load-time check: on the calls a model really makes, does a row keep its bits in company?

Each recorded call is repeated with runs of its rows, alone and among others; each call of the
latent attention is repeated with longer lists of unused entries. A candidate that fails anywhere
is replaced, by name, with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.optable import Call, Candidate, Candidates

# Which arguments of each op hold rows, by position; the outputs' first axis follows them.
ROW_ARGUMENTS: Mapping[str, tuple[int, ...]] = {
    "linear": (0,),
    "linear_parts": (0,),
    "linear_heads": (0,),
    "rms_norm": (0,),
    "layer_norm": (0,),
    "hc_split": (0,),
    "hc_join": (0, 1, 2, 3),
    "short_conv": (0, 2),
    "kda_steps": (0, 1, 2, 3, 4, 5, 6),
    "pool_keys": (0, 1),
    "pick_tokens": (0, 1, 4, 5),
    "latent_attention": (0, 3, 4),
    "route": (0,),
    "experts": (0, 1, 2),
    "hc_mix": (0,),
    "hc_collapse": (0, 1),
    "engram_gate": (0, 1, 2, 4),
    "pick_rows": (0, 1, 4, 5, 6),
    "sink_attention": (0, 3, 5),
    "route_softplus": (0,),
    "experts_weighted": (0, 1, 2),
    "rotate": (0, 1, 2),
    "rank_keys": (0,),
    "exp_sums": (0, 1),
    "running_sums": (0,),
    "noise_bounds": (0, 1),
    "noise_at": (0, 1),
}
RUNS = ((0, 1), (1, 3), (0, 4), (3, 10), (0, 8), (5, 17), (0, 24), (8, 40), (0, 64), (64, 256))

Same = Callable[[Any, Any], bool]


def outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def by_row(name: str, run: Callable[..., Any], args: Sequence[Any]) -> tuple[Tensor, ...]:
    """A call's outputs; for `kda_steps` also the states it leaves, of a state of its own."""
    if name != "kda_steps":
        return outputs(run(*args))
    *inputs, lane_B, count_B, state = args
    state = state.clone()
    return (*outputs(run(*inputs, lane_B, count_B, state)), state[lane_B])


def rows_keep_bits(call: Call, run: Callable[..., Any]) -> bool:
    """Whether runs of rows give the bits they have in the whole call, twice the same."""
    positions = ROW_ARGUMENTS.get(call.name)
    if positions is None:
        return blocks_keep_bits(call, run)
    args = list(call.args)
    if call.name == "short_conv":
        # Sources name rows of u by number: give every row a history source of its own instead.
        args[2] = args[2] % (args[1].shape[0] * args[1].shape[1])
    whole = by_row(call.name, run, args)
    if not all(map(torch.equal, whole, by_row(call.name, run, args))):
        return False
    rows = args[positions[0]].shape[0]
    for first, last in RUNS:
        if last > rows:
            continue
        part = list(args)
        for position in positions:
            part[position] = args[position][first:last].contiguous()
        if not all(
            torch.equal(small, large[first:last])
            for small, large in zip(by_row(call.name, run, part), whole, strict=True)
        ):
            return False
    return True


def blocks_keep_bits(call: Call, run: Callable[..., Any]) -> bool:
    """`kda_blocks`: the blocks in one call, and one call a block, give the same bits."""
    *inputs, rows_NT, lane_N, state = call.args
    whole_state, part_state = state.clone(), state.clone()
    whole = run(*inputs, rows_NT, lane_N, whole_state)
    part = torch.zeros_like(whole)
    for block in range(rows_NT.shape[0]):
        here = slice(block, block + 1)
        part = part + run(*inputs, rows_NT[here], lane_N[here], part_state)
    return torch.equal(whole, part) and torch.equal(whole_state, part_state)


def lists_keep_bits(call: Call, run: Callable[..., Any], widths: Sequence[int]) -> bool:
    """`latent_attention`: unused entries at a list's end change nothing."""
    *before, list_RK, page, scale = call.args
    whole = run(*before, list_RK, page, scale)
    for width in widths:
        missing = width - list_RK.shape[1]
        if missing > 0:
            longer = torch.cat([list_RK, list_RK.new_full((list_RK.shape[0], missing), -1)], 1)
            if not torch.equal(run(*before, longer, page, scale), whole):
                return False
    return True


def pools_keep_bits(call: Call, run: Callable[..., Any], widths: Sequence[int]) -> bool:
    """`pick_tokens`, `pick_rows`: looking at more than any row can see changes no list."""
    *before, width = call.args
    table_LP, page = before[3], before[-1]
    whole = outputs(run(*before, width))
    for wider in widths:
        if width < wider <= table_LP.shape[1] * page:
            more = outputs(run(*before, wider))
            if not all(
                torch.equal(large[:, : small.shape[1]], small)
                for large, small in zip(more, whole, strict=True)
            ):
                return False
    return True


def holds(call: Call, candidate: Candidate, widths: Sequence[int]) -> bool:
    """`widths` are the sizes that the op's lists or pools may be rounded up to."""
    run = candidate.call
    if not rows_keep_bits(call, run):
        return False
    if call.name == "latent_attention":
        return lists_keep_bits(call, run, widths)
    if call.name in ("pick_tokens", "pick_rows"):
        return pools_keep_bits(call, run, widths)
    return True


def widths_of(name: str, calls: Sequence[Call], context: int) -> list[int]:
    """Lists are as wide as recorded calls have them; pools are looked at up to the context."""
    if name == "latent_attention":
        return sorted({call.args[4].shape[1] for call in calls})
    return list(batch.widths(context))


def choose(
    candidates: Candidates,
    calls: Sequence[Call],
    context: int,
    verdict: Callable[[Call, Candidate, Sequence[int]], bool] = holds,
    everywhere: Callable[[bool], bool] = bool,
    shares: Callable[[str, Candidate, Sequence[Call]], bool | None] = lambda *_: None,
) -> tuple[dict[str, Candidate], dict[str, bool | None]]:
    """The first candidate of each op that holds on all its calls, and each op's check.

    The check is true or false of the preferred candidate, and none where nothing called the op or
    it rests on no library product. `everywhere` tells whether what holds here does on all ranks.
    `shares` tells whether a rank's share of a candidate's calls has the whole's bits, or none where
    ranks cut nothing of them; the check of that name is of the candidate that is chosen.
    """
    chosen: dict[str, Candidate] = {}
    checks: dict[str, bool | None] = {}
    for name, choices in candidates.items():
        own = [call for call in calls if call.name == name]
        widths = widths_of(name, own, context)
        checks[f"rows:{name}"] = None
        for candidate in choices:
            told = own or candidate.follows is not None
            shared = shares(name, candidate, own) if told else None
            if shared is not None:
                shared = checks[f"ranks:{name}"] = everywhere(shared)
            if not candidate.library:
                chosen[name] = candidate
                break
            held = bool(own) and all(verdict(call, candidate, widths) for call in own)
            held = everywhere(held)
            if checks[f"rows:{name}"] is None and own:
                checks[f"rows:{name}"] = held
            if held and shared is not False:
                chosen[name] = candidate
                break
    return chosen, checks
