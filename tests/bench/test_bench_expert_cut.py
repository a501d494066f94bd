"""The bench of both cuts: ranks of random weights are parts of one model, and rounds are timed."""

from __future__ import annotations

import re
import subprocess

import pytest
import torch

from tensorfold.core.share import IDS, WIDTH, Share
from tensorfold.families.glm53.plugin import FAMILY
from tensorfold.tools import widths
from tensorfold.tools.decode.engines import RandomTensors
from tensorfold.tools.own_command import own_command


@pytest.mark.parametrize("cut", [IDS, WIDTH])
def test_ranks_hold_parts_of_the_same_random_tensors(cut: str) -> None:
    specs = FAMILY.tensors(FAMILY.config(widths.tiny_glm53(4), expert_cut=cut))

    def made(share: Share) -> RandomTensors:
        device = torch.device("cpu")
        return RandomTensors(specs, dtype=torch.float32, device=device, share=share)

    whole, parts = made(Share()), [made(Share(rank=rank, ranks=3)) for rank in range(3)]
    for spec in specs:
        own = [part[spec.name] for part in parts if spec.name in part]
        if spec.axis is not None:
            assert torch.equal(torch.cat(own, spec.axis), whole[spec.name]), spec.name
            continue
        assert len(own) == (3 if spec.unit is None else 1), spec.name
        assert all(torch.equal(part, whole[spec.name]) for part in own), spec.name


def test_rounds_of_two_ranks_are_timed() -> None:
    command = [*own_command("tensorfold.tools.bench_expert_cut"), "glm53", "--cut", WIDTH]
    done = subprocess.run(
        [*command, "--streams", "1,3", "--reps", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = re.findall(r"2 ranks, by width: (\d) rows ([\d.]+) ms", done.stdout)
    assert [rows for rows, _ in told] == ["1", "3"], done.stdout
    assert all(float(spent) > 0 for _, spent in told), done.stdout
