"""Run TensorFold out of this checkout, with its dependencies present but itself not installed.

    python uninstalled.py serve
    python uninstalled.py -m tensorfold.tools.bench_ops

The folders of the checkout become the package `tensorfold`, as `pyproject.toml` maps them. A
program that wants the package without the command imports this module first.
"""

import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

CHECKOUT = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 11)


def attach():
    """Make `tensorfold` the package whose parts are this checkout's folders."""
    # The origin is what starts another program the same way.
    spec = ModuleSpec("tensorfold", None, origin=os.path.abspath(__file__), is_package=True)
    spec.submodule_search_locations = [CHECKOUT]
    sys.modules["tensorfold"] = module_from_spec(spec)


if sys.version_info < OLDEST:
    needed, present = [".".join(map(str, v)) for v in (OLDEST, tuple(sys.version_info)[:3])]
    sys.stderr.write("TensorFold needs Python %s or newer; this is %s.\n" % (needed, present))
    sys.exit(2)

attach()

if __name__ == "__main__" and sys.argv[1:2] == ["-m"] and len(sys.argv) > 2:
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
elif __name__ == "__main__":
    from tensorfold.tools.cli import main

    sys.exit(main())
