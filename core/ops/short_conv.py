"""Causal depthwise convolution over the last four rows of a stream, then SiLU.

Source: spec glm53 2.3, step 2. Rows find their predecessors through indices, so prompts, windows
and packs of several streams are one form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, whole


def reference(u_RC: Tensor, history_LHC: Tensor, source_RT: Tensor, taps_CT: Tensor) -> Tensor:
    """y[r, c] = silu(sum over t of taps[c, t] * row(source[r, t])[c]), t ascending; [R, C].

    A source counts rows of the history, flattened over lanes, and then the rows of u. The last
    source of a row is the row itself.
    """
    rows = torch.cat([history_LHC.flatten(0, 1), u_RC])
    y_RC = torch.einsum("rtc,ct->rc", rows[source_RT], taps_CT)
    return y_RC / (1 + torch.exp(-y_RC))


def shape(u_RC: Tensor, history_LHC: Tensor, source_RT: Tensor, taps_CT: Tensor) -> Tensor:
    return torch.empty_like(u_RC)


def cases(generator: torch.Generator) -> list[Case]:
    # Sources point into the history alone here, so that a run of rows is a call of its own.
    found = []
    for channels in (768, 192, 20):
        args = {
            "u_RC": normal(generator, 328, channels),
            "history_LHC": normal(generator, 9, 3, channels),
            "source_RT": whole(generator, 0, 27, 328, 4),
            "taps_CT": normal(generator, channels, 4),
        }
        found.append(Case(name=f"{channels}", args=args, rows=("u_RC", "source_RT")))
    return found


OP = OpSpec(
    name="short_conv",
    schema="(Tensor u, Tensor history, Tensor source, Tensor taps) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("taps_CT",),
)
