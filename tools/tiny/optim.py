"""Muon for the matrices inside the model, AdamW for everything else.

Muon: momentum made orthogonal by five Newton-Schulz steps (Jordan et al., 2024), its step scaled
by 0.2 sqrt(larger side) so that one learning rate serves both (Moonlight, arXiv 2502.16982).
"""

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(momentum: Tensor) -> Tensor:
    """The nearest orthogonal matrices to [N, rows, columns], roughly, in bf16 on a GPU."""
    x = momentum.bfloat16() if momentum.is_cuda else momentum.clone()
    tall = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    one, two, three = COEFFICIENTS
    for _ in range(5):
        square = x @ x.transpose(-1, -2)
        x = one * x + (two * square + three * square @ square) @ x
    return (x.transpose(-1, -2) if tall else x).to(momentum.dtype)


class Optimizer:
    """Steps named parameters; `rate` is the learning rate of the step. AdamW steps the matrices
    whose names have a part of `plain`; those of hyper-connections ("hc_") do not decay."""

    def __init__(
        self,
        named: list[tuple[str, nn.Parameter]],
        *,
        plain: tuple[str, ...],
        decay: float,
        momentum: float = 0.95,
    ) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = {}
        heavy: list[nn.Parameter] = []
        light: list[nn.Parameter] = []
        for name, weight in named:
            if weight.dim() >= 2 and not any(part in name for part in plain):
                groups.setdefault(weight.shape[-2:], []).append(weight)
            else:
                small = any(part in name for part in ("hc_", "hyper."))
                (heavy if weight.dim() >= 2 and not small else light).append(weight)
        self.decay, self.momentum = decay, momentum
        self.groups = list(groups.values())
        self.moments = [[torch.zeros_like(p) for p in group] for group in self.groups]
        adam = [{"params": heavy, "weight_decay": decay}, {"params": light, "weight_decay": 0.0}]
        fused = named[0][1].is_cuda
        self.adam = torch.optim.AdamW(adam, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, fused=fused)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, moments in zip(self.groups, self.moments, strict=True):
            gradients = [p.grad for p in group]
            torch._foreach_lerp_(moments, gradients, 1 - self.momentum)
            ahead = torch._foreach_lerp(gradients, moments, self.momentum)
            flat = torch.cat([x.reshape(-1, *x.shape[-2:]) for x in ahead])
            scale = 0.2 * max(flat.shape[-2:]) ** 0.5
            steps = orthogonal(flat).split([p.numel() // flat[0].numel() for p in group])
            torch._foreach_mul_(group, 1 - rate * self.decay)
            shaped = [step.view_as(p) for step, p in zip(steps, group, strict=True)]
            torch._foreach_add_(group, shaped, alpha=-rate * scale)
        for options in self.adam.param_groups:
            options["lr"] = rate
        self.adam.step()
