"""The seam: plugins load one by one, and a failure is told only to who chooses it."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tensorfold.core.errors import StartError
from tensorfold.plugins import hookimpl
from tensorfold.plugins.choose import choose_backend, choose_drafters, choose_family, standing
from tensorfold.plugins.manager import (
    BACKEND_PARTS,
    DRAFTER_PARTS,
    FAMILY_PARTS,
    Installed,
    Source,
    declared,
    discover,
    sources,
)

CHECKOUT = Path(__file__).resolve().parents[2]


def backend(name: Any, why_not: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        summary="a backend of a test",
        needs_family=False,
        unusable=lambda: why_not,
        bundled=lambda: None,
        engine=None,
        check=None,
    )


def family(name: str, *model_types: str) -> SimpleNamespace:
    parts = dict.fromkeys(FAMILY_PARTS)
    return SimpleNamespace(**(parts | {"name": name, "model_types": model_types}))


def plugin(backends: Any = (), families: Any = ()) -> ModuleType:
    """A plugin module that returns these from its hooks, or raises those that are exceptions."""

    def answer(value: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return list(value) if isinstance(value, tuple) else value

    def register_backends() -> Any:
        return answer(backends)

    def register_families() -> Any:
        return answer(families)

    module = ModuleType("a_plugin")
    vars(module).update(
        register_backends=hookimpl(register_backends),
        register_families=hookimpl(register_families),
    )
    return module


def found(**plugins: Any) -> Installed:
    """What is installed when these plugins are; an exception is raised at its plugin's import."""

    def loader(value: Any) -> Any:
        def load() -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        return load

    return discover([Source(name, loader(value)) for name, value in plugins.items()])


def reasons(installed: Installed) -> dict[str, str]:
    return {failure.plugin: failure.reason for failure in installed.failures}


def test_each_plugins_backends_and_families_are_found_by_name() -> None:
    installed = found(
        one=plugin(backends=(backend("a"), backend("b-2"))),
        two=plugin(backends=(backend("c"),), families=(family("f", "f_next"),)),
    )
    assert set(installed.backends) == {"a", "b-2", "c"}
    assert installed.backends["c"].plugin == "two"
    assert choose_backend(installed, "b-2") is installed.backends["b-2"].value
    assert choose_family(installed, "f_next").name == "f"
    assert not installed.failures


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (ImportError("no module named gpu"), "ImportError: no module named gpu"),
        (SystemExit(3), "SystemExit: 3"),
        (plugin(backends=RuntimeError("driver\ntoo old")), "RuntimeError: driver too old"),
        (plugin(families=ValueError()), "ValueError"),
        (plugin(backends=None), "register_backends must return a list"),
        (plugin(backends="cuda"), "register_backends must return a list"),
        (plugin(backends=(backend("Bad_Name"),)), "the name 'Bad_Name'"),
        (plugin(backends=(backend(7),)), "the name 7"),
        (plugin(backends=(SimpleNamespace(name="x"),)), "has no summary, needs_family"),
        (plugin(families=(backend("x"),)), "has no model_types, grid, files"),
        (ModuleType("nothing"), "implements no hook"),
    ],
)
def test_a_broken_plugin_hurts_only_who_chooses_it(broken: Any, reason: str) -> None:
    installed = found(before=plugin((backend("a"),)), sick=broken, after=plugin((backend("b"),)))
    assert choose_backend(installed, "a").name == "a"
    assert choose_backend(installed, "b").name == "b"
    assert list(reasons(installed)) == ["sick"]
    assert reason in reasons(installed)["sick"]
    with pytest.raises(StartError, match="backend 'sick' cannot be used: its plugin failed") as e:
        choose_backend(installed, "sick")
    assert reason in str(e.value)
    assert "\n" not in str(e.value)


def test_all_that_the_protocols_ask_for_is_looked_for() -> None:
    assert (
        *("name", "summary", "needs_family"),
        *("unusable", "bundled", "engine", "check"),
    ) == BACKEND_PARTS
    assert DRAFTER_PARTS == ("name", "summary", "begin")
    assert {"name", "index_split", "chat_in", "drafts", "shared", "golden"} < {*FAMILY_PARTS}


@pytest.mark.parametrize("part", [part for part in FAMILY_PARTS if part != "name"])
def test_a_family_that_lacks_a_part_is_a_failure_that_names_it(part: str) -> None:
    sick = family("f", "f_next")
    delattr(sick, part)
    told = reasons(found(sick=plugin(families=(sick,))))["sick"]
    assert told.endswith(f"which has no {part}")


def test_a_failed_plugin_is_found_under_its_backends_dashed_name() -> None:
    with pytest.raises(StartError, match="its plugin failed \\(ImportError: no torch\\)"):
        choose_backend(found(cpu_reference=ImportError("no torch")), "cpu-reference")


def test_a_misspelt_hook_is_a_failure_that_names_it() -> None:
    module = plugin((backend("a"),))
    vars(module)["register_backend"] = hookimpl(lambda: [])
    assert reasons(found(sick=module)) == {"sick": "it implements unknown hooks: register_backend"}


def test_a_hook_with_an_argument_that_is_not_given_is_a_failure() -> None:
    module = ModuleType("module")
    vars(module)["register_backends"] = hookimpl(lambda device: [])
    assert "device" in reasons(found(sick=module))["sick"]


def test_two_plugins_of_one_name_are_a_failure() -> None:
    first, second = plugin((backend("a"),)), plugin((backend("b"),))
    installed = discover([Source("same", lambda: first), Source("same", lambda: second)])
    assert reasons(installed) == {"same": "two plugins are named 'same'"}


def test_a_backend_name_claimed_twice_is_an_error_for_that_name_alone() -> None:
    installed = found(
        one=plugin((backend("shared"), backend("a"))), two=plugin((backend("shared"),))
    )
    with pytest.raises(StartError, match=r"'shared' is claimed by several plugins \(one, two\)"):
        choose_backend(installed, "shared")
    assert choose_backend(installed, "a").name == "a"


def test_one_plugin_that_claims_a_name_twice_clashes_with_itself() -> None:
    installed = found(one=plugin((backend("a"), backend("a"))))
    assert installed.backend_clashes == {"a": ("one", "one")}


def test_a_model_type_claimed_twice_is_an_error_for_that_type_alone() -> None:
    installed = found(
        one=plugin(families=(family("f", "shared", "mine"),)),
        two=plugin(families=(family("g", "shared"),)),
    )
    with pytest.raises(StartError, match=r"model_type 'shared' is claimed by several plugins"):
        choose_family(installed, "shared")
    assert choose_family(installed, "mine").name == "f"


def test_families_of_one_name_serve_nothing_and_are_listed() -> None:
    installed = found(
        one=plugin(families=(family("f", "a"),)), two=plugin(families=(family("f", "b"),))
    )
    with pytest.raises(StartError, match="f: claimed by one and two"):
        choose_family(installed, "a")


def test_a_backend_that_cannot_run_here_is_refused_with_its_reason_and_the_others() -> None:
    installed = found(one=plugin((backend("gpu", "no CUDA device."), backend("a"))))
    with pytest.raises(StartError) as caught:
        choose_backend(installed, "gpu")
    assert str(caught.value) == (
        "backend 'gpu' cannot run here: no CUDA device "
        "(backends here: a: usable, gpu: no CUDA device.)"
    )


def test_a_backend_that_raises_when_asked_whether_it_can_run_is_unusable() -> None:
    sick = backend("sick")
    sick.unusable = lambda: 1 / 0
    installed = found(one=plugin((sick,)))
    with pytest.raises(StartError, match="ZeroDivisionError"):
        choose_backend(installed, "sick")
    assert standing(sick) is not None


def test_an_unknown_name_is_refused_by_listing_what_there_is_and_what_failed() -> None:
    installed = found(one=plugin((backend("a"),)), sick=ImportError("no driver"))
    with pytest.raises(StartError) as caught:
        choose_backend(installed, "cuda")
    assert str(caught.value) == (
        "there is no backend 'cuda' (backends here: a: usable; "
        "failed plugins: sick: ImportError: no driver)"
    )
    with pytest.raises(StartError, match="no family serves model_type 'x' \\(no families here"):
        choose_family(installed, "x")


def drafter(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, summary="guesses", begin=lambda: None)


def drafting_plugin(*names: str) -> ModuleType:
    module = ModuleType("drafting")
    offered = [drafter(name) for name in names]
    vars(module)["register_drafters"] = hookimpl(lambda: offered)
    return module


def test_drafters_are_chosen_by_name_in_the_order_asked() -> None:
    installed = found(one=drafting_plugin("a", "b"), two=drafting_plugin("c", "b"))
    assert [each.name for each in choose_drafters(installed, ["c", "a"])] == ["c", "a"]
    assert choose_drafters(installed, []) == []
    with pytest.raises(StartError, match="drafter 'b' is claimed by several plugins"):
        choose_drafters(installed, ["b"])
    with pytest.raises(StartError, match="drafter 'a' is named twice"):
        choose_drafters(installed, ["a", "c", "a"])
    with pytest.raises(StartError) as caught:
        choose_drafters(installed, ["z"])
    assert str(caught.value) == (
        "there is no drafter 'z' (drafters here: a, c, b: claimed by one and two)"
    )


def test_a_plugin_whose_drafter_lacks_a_part_is_a_failure() -> None:
    module = ModuleType("sick")
    vars(module)["register_drafters"] = hookimpl(lambda: [SimpleNamespace(name="x", summary="")])
    assert "which has no begin" in reasons(found(sick=module))["sick"]
    installed = found(sick=module)
    with pytest.raises(StartError, match="there is no drafter 'x'"):
        choose_drafters(installed, ["x"])


def test_an_entry_point_is_loaded_by_its_modules_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_plugin", plugin((backend("a"),)))
    good = EntryPoint("good", "some_plugin", "tensorfold")
    gone = EntryPoint("gone", "some_plugin_that_is_not_there", "tensorfold")
    installed = discover([Source(e.name, e.load) for e in (gone, good)])
    assert choose_backend(installed, "a").name == "a"
    assert "some_plugin_that_is_not_there" in reasons(installed)["gone"]


def test_a_checkouts_plugins_are_those_of_its_pyproject_and_each_once() -> None:
    own = [entry.name for entry in declared(CHECKOUT / "pyproject.toml")]
    names = [source.name for source in sources()]
    assert "cpu_reference" in own
    assert [name for name in names if name in own] == own
