"""The command's words and exit codes: a start that cannot succeed is one sentence and a 2."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorfold.core.copies import Copies
from tensorfold.core.errors import StartError
from tensorfold.core.version import VERSION
from tensorfold.plugins.manager import Failure, Installed, Offer
from tensorfold.tools import check, cli, models, serve, show_plugins

CHECKOUT = Path(__file__).resolve().parents[2]

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command, which must end in one sentence and exit code 2; the sentence."""

    def run(*arguments: str) -> str:
        assert cli.main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("tensorfold: ")
        assert printed.err.count("\n") == 1
        return printed.err.removeprefix("tensorfold: ").rstrip("\n")

    return run


def backend(name: str, why_not: str | None = None, **parts: Any) -> Offer[Any]:
    def engine(order: Any) -> Any:
        raise StartError(f"{name} was asked for {order.folder}")

    value = SimpleNamespace(
        name=name,
        summary="for a test",
        needs_family=True,
        unusable=lambda: why_not,
        bundled=lambda: None,
        engine=engine,
        check=lambda report: True,
    )
    vars(value).update(parts)
    return Offer(plugin=f"{name}-plugin", value=value)


def family(name: str, *model_types: str, **bundled: Path) -> Offer[Any]:
    value = SimpleNamespace(name=name, model_types=model_types, bundled=lambda: bundled)
    return Offer(plugin=f"{name}-plugin", value=value)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the tools find installed."""

    def put(*backends: Offer[Any], families: Any = (), **others: Any) -> None:
        found = Installed(
            backends={offer.value.name: offer for offer in backends},
            families={offer.value.name: offer for offer in families},
            drafters={"copies": Offer(plugin="builtin", value=Copies())},
            **others,
        )
        for module in (check, models, serve, show_plugins):
            monkeypatch.setattr(module, "discover", lambda: found)

    return put


@pytest.fixture(autouse=True)
def settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TF_PORT", "0")


def test_the_command_alone_and_with_help_lists_every_tool(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in ([], ["--help"], ["help"]):
        assert cli.main(arguments) == 0
        printed = capsys.readouterr().out
        assert all(f"  {name} " in printed for name in cli.TOOLS)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tensorfold {VERSION}\n" * 2


@pytest.mark.parametrize("tool", ["serve", "ask", "models", "plugins", "check"])
def test_every_tool_explains_itself(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([tool, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: tensorfold {tool}")


def test_an_unknown_command_is_refused_by_listing(refused: Refused) -> None:
    assert refused("sreve").startswith("there is no command 'sreve'; there are serve, ask, ")


def test_a_tool_that_is_not_in_this_install_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.TOOLS, "fly", cli.Tool("fly", "flies"))
    assert refused("fly") == "this install has no `tensorfold fly`"


def test_an_interrupt_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "main", interrupted)
    assert cli.main(["models"]) == 130
    assert capsys.readouterr().err == "tensorfold: interrupted\n"


def test_a_port_that_is_taken_is_told_before_anything_loads(
    refused: Refused, installed: Callable[..., None]
) -> None:
    installed()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = refused("serve", "--port", str(port))
    assert words == f"cannot listen on 127.0.0.1 port {port}: Address already in use"


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid", "a..b"])
def test_an_address_that_is_not_this_machines_is_refused(refused: Refused, host: str) -> None:
    assert refused("serve", "--host", host).startswith(f"cannot listen on {host} port 0: ")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--port", "http", "--port must be a whole number, not 'http'"),
        ("--port", "70000", "--port must be at most 65535, not 70000"),
        ("--lanes", "0", "--lanes must be at least 1, not 0"),
        ("--log", "loud", "--log must be one of debug, info, warning, error, not 'loud'"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(
    refused: Refused, flag: str, value: str, words: str
) -> None:
    assert refused("serve", flag, value) == words


@pytest.mark.parametrize(
    "name", ["CHUNKS", "ROUNDS", "CUT_IN", "DRAIN", "PACK"], ids=lambda name: name.lower()
)
def test_a_fill_that_is_no_number_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"TF_FILL_{name}", "lots")
    assert refused("serve") == f"TF_FILL_{name} must be a whole number, not 'lots'"


def test_a_trace_that_cannot_be_written_is_refused(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "gone" / "trace.jsonl"
    words = refused("serve", "--trace", str(path))
    assert words == f"--trace {path} cannot be written: No such file or directory"
    assert "Is a directory" in refused("serve", "--trace", str(tmp_path))


def test_a_cache_folder_that_cannot_be_written_is_refused(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "cache"
    words = refused("serve", "--cache-dir", str(folder))
    assert words == f"--cache-dir {folder} cannot be written: Not a directory"


def test_a_cache_folder_is_made_and_left_empty(
    refused: Refused, installed: Callable[..., None], tmp_path: Path
) -> None:
    installed()
    folder = tmp_path / "a" / "b"
    refused("serve", "--cache-dir", str(folder))
    assert list(folder.iterdir()) == []


def test_an_unknown_backend_is_refused_by_listing(
    refused: Refused, installed: Callable[..., None]
) -> None:
    installed(backend("cpu-reference"), failures=(Failure(plugin="gpu", reason="OSError: x"),))
    assert refused("serve", "--backend", "cuda") == (
        "there is no backend 'cuda' (backends here: cpu-reference: usable; "
        "failed plugins: gpu: OSError: x)"
    )


@pytest.mark.parametrize(
    "why", ["no CUDA device", "it needs the extra `triton` (pip install 'tensorfold[triton]')"]
)
@pytest.mark.parametrize("tool", ["serve", "check"])
def test_a_backend_that_cannot_run_here_is_refused_with_its_reason(
    refused: Refused, installed: Callable[..., None], why: str, tool: str
) -> None:
    installed(backend("gpu", why))
    assert f"backend 'gpu' cannot run here: {why}" in refused(tool, "--backend", "gpu")


def test_a_backend_whose_plugin_raised_is_refused_with_what_it_raised(
    refused: Refused, installed: Callable[..., None]
) -> None:
    installed(failures=(Failure(plugin="cpu_reference", reason="ImportError: no torch"),))
    assert refused("serve") == (
        "backend 'cpu-reference' cannot be used: its plugin failed (ImportError: no torch)"
    )


def test_a_backend_that_two_plugins_bring_is_refused_naming_them(
    refused: Refused, installed: Callable[..., None]
) -> None:
    installed(backend_clashes={"gpu": ("one", "two")})
    assert refused("serve", "--backend", "gpu") == (
        "backend 'gpu' is claimed by several plugins (one, two): remove all but one"
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "{folder} holds no config.json: it is no checkpoint's folder"),
        ("{", "{folder}/config.json is not JSON: Expecting property name"),
        ("[]", "{folder}/config.json holds list, not a JSON object"),
        ("{}", "{folder}/config.json has no model_type"),
        ('{"model_type": 7}', "{folder}/config.json has no model_type"),
        (
            '{"model_type": "llama"}',
            "{folder}/config.json: no family serves model_type 'llama' (families here: f: f_next)",
        ),
    ],
)
def test_a_folder_that_is_no_known_checkpoint_is_refused(
    refused: Refused,
    installed: Callable[..., None],
    tmp_path: Path,
    config: str | None,
    words: str,
) -> None:
    installed(backend("cpu-reference"), families=[family("f", "f_next")])
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert refused("serve", str(tmp_path)).startswith(words.replace("{folder}", str(tmp_path)))


def test_a_model_type_that_two_families_claim_is_refused_naming_them(
    refused: Refused, installed: Callable[..., None], tmp_path: Path
) -> None:
    installed(backend("cpu-reference"), type_clashes={"f_next": ("one", "two")})
    (tmp_path / "config.json").write_text('{"model_type": "f_next"}')
    assert "is claimed by several plugins (one, two)" in refused("serve", str(tmp_path))


def test_a_name_that_is_neither_folder_nor_bundled_is_refused_by_listing(
    refused: Refused, installed: Callable[..., None], tmp_path: Path
) -> None:
    installed(backend("cpu-reference"), families=[family("f", "f_next", small=tmp_path)])
    assert refused("serve", "smal") == (
        "there is no folder smal and no bundled model of that name (small)"
    )
    (tmp_path / "file").touch()
    assert "is not a folder" in refused("serve", str(tmp_path / "file"))


def test_a_family_that_fails_to_list_its_models_stops_no_other(
    installed: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sick = family("sick", "s_next")
    sick.value.bundled = lambda: {}["gone"]
    installed(families=[sick, family("f", "f_next", small=tmp_path)])
    assert cli.main(["models"]) == 0
    assert capsys.readouterr().out == (
        f"small  family f  {tmp_path}\nfamily sick failed to list its models (KeyError: 'gone')\n"
    )


def test_a_backend_that_brings_a_whole_engine_serves_its_own_folder_only(
    refused: Refused, installed: Callable[..., None], tmp_path: Path
) -> None:
    installed(backend("whole", needs_family=False, bundled=lambda: tmp_path), backend("empty"))
    assert refused("serve", "--backend", "whole") == f"whole was asked for {tmp_path}"
    assert "serves its own model only" in refused("serve", "x", "--backend", "whole")
    installed(backend("whole", needs_family=False))
    assert "names no folder" in refused("serve", "--backend", "whole")


def test_plugins_are_listed_with_what_works_and_why_the_rest_does_not(
    installed: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    installed(
        backend("a"),
        backend("gpu", "no CUDA device"),
        families=[family("f", "f_next", small=tmp_path)],
        failures=(Failure(plugin="sick", reason="ImportError: x"),),
        backend_clashes={"b": ("one", "two")},
    )
    assert cli.main(["plugins"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "backend  a  (usable)  for a test  [plugin a-plugin]",
        "backend  gpu  (cannot run here: no CUDA device)  for a test  [plugin gpu-plugin]",
        "family   f  serves model_type f_next  [plugin f-plugin]",
        f"drafter  copies  {Copies.summary}  [plugin builtin]",
        "clash    backend b is claimed by one and two",
        "failed   plugin sick: ImportError: x",
    ]
    assert cli.main(["models"]) == 0
    assert capsys.readouterr().out == f"small  family f  {tmp_path}\n"


def test_check_runs_what_can_run_here_and_its_exit_status_tells(
    installed: Callable[..., None], capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    def checks(name: str, holds: bool) -> Offer[Any]:
        def run(report: Callable[[str], None]) -> bool:
            report(f"SUMMARY {name} {'ok' if holds else 'FAILED'}")
            return holds

        return backend(name, check=run)

    installed(checks("a", True), checks("b", False), backend("gpu", "no CUDA device"))
    assert cli.main(["check"]) == 1
    told = "SUMMARY a ok\nSUMMARY b FAILED\nSUMMARY gpu: not run, since no CUDA device\n"
    assert capsys.readouterr().out == told
    assert cli.main(["check", "--backend", "a"]) == 0
    assert capsys.readouterr().out == "SUMMARY a ok\n"
    installed(backend("gpu", "no CUDA device"))
    assert refused("check") == "no backend can run here (backends here: gpu: no CUDA device)"


def test_an_interpreter_that_is_too_old_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2, "final", 0))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(CHECKOUT / "uninstalled.py"), run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "TensorFold needs Python 3.11 or newer; this is 3.10.2.\n"


@pytest.mark.parametrize("tool", ["--help", "plugins", "models"])
def test_what_lists_and_explains_starts_without_anything_heavy(tool: str) -> None:
    program = (
        "import sys; from tensorfold.tools.cli import main; main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'aiohttp', 'tokenizers', 'rich', 'asyncio'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    setup = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); "
    setup += "import importlib.util as u; u.find_spec('tensorfold') or __import__('uninstalled'); "
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", setup + program, tool],
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--colour", "red"], "unrecognized arguments: --colour"),
        (["serve", "--chunk", "8"], "unrecognized arguments: --chunk"),
        (["serve", "--port"], "argument --port: expected one argument"),
        (["ask"], "the following arguments are required: prompt"),
        (["ask", "Hi", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    refused: Refused, arguments: list[str], words: str
) -> None:
    assert refused(*arguments) == f"{words} (tensorfold {arguments[0]} --help tells more)"
