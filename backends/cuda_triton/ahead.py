"""Compiling the kernels that a model will launch, many at once and before the first of them runs.

A rehearsal calls the ops with all their launches held back: each launch tells which kernel it
needs, of which types, sizes and options, and torch's pool of compiler processes makes it. They
leave it in Triton's cache, where the first real launch finds it. What a rehearsal did not call for
is compiled at its first launch, as ever.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

# What a compiler process runs: it knows nothing of how this one found its packages.
CODE = """
import importlib.util
importlib.util.find_spec("tensorfold") or __import__("uninstalled")
from tensorfold.backends.cuda_triton.ahead import make
make(*wanted)
"""


class Wanted(NamedTuple):
    """A kernel as Triton specialises it, in words that cross to another process."""

    module: str
    name: str
    signature: Mapping[str, Any]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    options: Mapping[str, Any]


def called_for(rehearse: Callable[[], None]) -> list[Wanted]:
    """The kernels that `rehearse` launches; none of them is run or compiled.

    Kernels that this process launched before are run, and not told.
    """
    found: dict[tuple[str, str, str], Wanted] = {}

    def hold(*, key: str, fn: Any, compile: Mapping[str, Any], **rest: Any) -> bool:
        found.setdefault(
            (fn.module, fn.name, str(key)),
            Wanted(
                fn.module,
                fn.name,
                compile["signature"],
                compile["constants"],
                compile["configs"][0],
                options_of(compile["specialization_data"]),
            ),
        )
        return True

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = hold
    try:
        rehearse()
    finally:
        knobs.runtime.jit_cache_hook = before
    return list(found.values())


def options_of(serialized: str) -> dict[str, Any]:
    """A launch's options out of Triton's own words for it, in which tuples are lists."""
    options = json.loads(serialized)["options"]
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }


def make(
    module: str,
    name: str,
    signature: Mapping[str, Any],
    constants: Mapping[Any, Any],
    attributes: Mapping[Any, Any],
    options: Mapping[str, Any],
    target: tuple[str, int, int],
    folder: str,
) -> None:
    """Compile a kernel into Triton's cache in `folder`."""
    kernel = getattr(importlib.import_module(module), name)
    source_of = GluonASTSource if kernel.is_gluon() else ASTSource
    source = source_of(kernel, signature, constants, attributes)
    with knobs.cache.scope():
        knobs.cache.dir = folder
        made = triton.compile(source, target=GPUTarget(*target), options=dict(options))
        # Some releases have a C compiler make what launches a kernel, and keep that beside it.
        if hasattr(driver, "make_launcher"):
            driver.CudaLauncher(source, made.metadata)


def start_pool() -> None:
    """Have torch's compiler processes start while other things are done."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.use_process_pool()


def compile_ahead(
    rehearse: Callable[[], None],
    target: tuple[str, int, int],
    report: Callable[[int, int], None],
) -> None:
    """Compile what `rehearse` launches; `report` is told how many of how many are there.

    A kernel that does not compile raises what its compiler said.
    """
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    if get_compile_threads() < 2:
        # One process compiles no faster now than at the first launch.
        return
    pool = AsyncCompile.process_pool()
    waiting: list[Future[None]] = []
    for one in called_for(rehearse):
        # Plain words: where they are read the package is not there yet.
        words = (*one, target, knobs.cache.dir)
        waiting.append(pool.submit(exec, CODE, {"wanted": words}))
    for done, future in enumerate(waiting):
        report(done, len(waiting))
        future.result()
