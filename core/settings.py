"""Every switch and flag in one table, read once at start.

A setting has a name, an environment variable, a flag, a unit and a default; a flag wins over the
environment. Nothing else in the engine reads the environment. A value that makes no sense is a
`StartError` that names the setting and the value.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from tensorfold.core.errors import StartError
from tensorfold.core.share import IDS, MEET_SECONDS, WIDTH
from tensorfold.core.switches import Switch, checked, parse, switch


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The values of one process. Field names are flag names with underscores for dashes."""

    backend: str = switch(
        "cpu-reference", "TF_BACKEND", "name", "choice", "backend; `tensorfold plugins` lists them"
    )
    host: str = switch("127.0.0.1", "TF_HOST", "address", "server", "address to listen on")
    port: int = switch(
        8000, "TF_PORT", "port", "server", "port; 0 picks a free one", least=0, most=65535
    )
    name: str = switch(
        "", "TF_NAME", "name", "server", "model name clients see; empty: the folder's"
    )
    lanes: int = switch(
        8, "TF_LANES", "streams", "engine", "streams that decode together", least=1, most=4096
    )
    context: int = switch(
        0,
        "TF_CONTEXT",
        "tokens",
        "engine",
        "prompt plus reply; 0: the model's own",
        least=2,  # one token of each
        unset=0,
    )
    chunk_rows: int = switch(
        512, "TF_CHUNK_ROWS", "rows", "engine", "rows of one prompt forward", least=1
    )
    window_rows: int = switch(
        8, "TF_WINDOW_ROWS", "rows", "engine", "rows of one stream in a round", least=1, most=64
    )
    drafts: int = switch(
        -1,
        "TF_DRAFTS",
        "tokens",
        "drafts",
        "most drafts of the model's own head a stream and round; -1: as many as suit it",
        least=0,
        most=63,
        unset=-1,
        off=0,
    )
    copies: bool = switch(
        True, "TF_COPIES", "flag", "drafts", "drafts copied from the stream's own context"
    )
    drafters: str = switch(
        "",
        "TF_DRAFTERS",
        "names",
        "drafts",
        "further drafters by name, joined by commas; `tensorfold plugins` lists them",
    )
    kept_bytes: int = switch(
        0,
        "TF_KEPT_BYTES",
        "bytes",
        "engine",
        "room beside the lanes for states that a host keeps; this server keeps none",
        least=0,
    )
    ranks: int = switch(
        1, "TF_RANKS", "processes", "engine", "processes that share the model", least=1, most=8
    )
    meet_timeout: float = switch(
        MEET_SECONDS,
        "TF_MEET_TIMEOUT",
        "seconds",
        "ranks",
        "time for all ranks to come",
        least=0.01,
    )
    expert_cut: str = switch(
        IDS,
        "TF_EXPERT_CUT",
        "choice",
        "engine",
        "ranks hold whole routed experts by ids, or a part of each one's inner width",
        choices=(IDS, WIDTH),
    )
    glm_index_split: int = switch(
        2048,
        "TF_GLM_INDEX_SPLIT",
        "position",
        "ranks",
        "prompt position from which ranks share glm5_next's index; 0: nowhere",
        least=0,
    )
    ds_index_split: int = switch(
        2048,
        "TF_DS_INDEX_SPLIT",
        "position",
        "ranks",
        "prompt position from which ranks share deepseek_v41's indexes; 0: nowhere",
        least=0,
    )
    index_shares: str = switch(
        "cost",
        "TF_INDEX_SHARES",
        "choice",
        "ranks",
        "shares of a split index: of equal cost or of equally many rows",
        choices=("cost", "rows"),
    )
    threads: int = switch(
        1, "TF_THREADS", "threads", "engine", "CPU threads of the engine", least=1, most=1024
    )
    numerics: str = switch(
        "",
        "TF_NUMERICS",
        "name",
        "engine",
        "the model's arithmetic, where it has several: plain or faithful; empty: the checkpoint's",
        choices=("", "plain", "faithful"),
    )
    tables: str = switch(
        "disk",
        "TF_TABLES",
        "place",
        "engine",
        "where tables that are read by row stay: disk, memory, or the device's own memory",
        choices=("disk", "memory", "device"),
    )
    prompt_shortcut: bool = switch(
        True, "TF_PROMPT_SHORTCUT", "flag", "engine", "leave out prompt rows that nothing reads"
    )
    dtype: str = switch(
        "",
        "TF_DTYPE",
        "format",
        "engine",
        "format of weights and rows: float32 or bfloat16; empty: the backend's choice",
        choices=("", "float32", "bfloat16"),
    )
    compile: bool = switch(
        False, "TF_COMPILE", "flag", "engine", "run compiled forwards; a GPU does unless told"
    )
    eager: bool = switch(
        False, "TF_EAGER", "flag", "engine", "run op by op, nothing compiled or captured: to debug"
    )
    temperature: float = switch(
        -1.0,
        "TF_TEMPERATURE",
        "number",
        "sampling",
        "default temperature; -1: the checkpoint's",
        least=0,
        most=2,
        unset=-1,
    )
    top_p: float = switch(
        -1.0,
        "TF_TOP_P",
        "number",
        "sampling",
        "default top_p; -1: the checkpoint's",
        above=0,
        most=1,
        unset=-1,
    )
    top_k: int = switch(
        -1,
        "TF_TOP_K",
        "tokens",
        "sampling",
        "default top_k; -1: the checkpoint's",
        least=0,
        unset=-1,
    )
    min_p: float = switch(
        -1.0,
        "TF_MIN_P",
        "number",
        "sampling",
        "default min_p; -1: the checkpoint's",
        least=0,
        most=1,
        unset=-1,
    )
    max_tokens: int = switch(
        0,
        "TF_MAX_TOKENS",
        "tokens",
        "sampling",
        "default reply bound; 0: the rest of the context",
        least=0,
    )
    fill: str = switch(
        "",
        "TF_FILL",
        "preset",
        "fills",
        "values for the fills that are not given themselves: plain (all unset) or smooth",
        choices=("", "plain", "smooth"),
    )
    fill_chunks: int = switch(
        0,
        "TF_FILL_CHUNKS",
        "chunks a step",
        "fills",
        "chunks of a prompt a step; 0: whole",
        least=0,
    )
    fill_many: bool = switch(False, "TF_FILL_MANY", "flag", "fills", "begun prompts take turns")
    fill_rounds: int = switch(
        1, "TF_FILL_ROUNDS", "rounds", "fills", "rounds between steps of begun prompts", least=0
    )
    fill_cut_in: int = switch(
        0,
        "TF_FILL_CUT_IN",
        "rows",
        "fills",
        "a whole prompt of at most that many rows goes first",
        least=0,
    )
    fill_drain: int = switch(
        0,
        "TF_FILL_DRAIN",
        "rows",
        "fills",
        "further whole prompts in a turn, up to that many rows",
        least=0,
    )
    fill_pack: int = switch(
        0,
        "TF_FILL_PACK",
        "rows",
        "fills",
        "whole prompts in one forward, up to that many rows",
        least=0,
    )
    background_after: float = switch(
        60.0,
        "TF_BACKGROUND_AFTER",
        "seconds",
        "queue",
        "background requests age into the foreground",
        least=0,
    )
    skips: int = switch(
        8,
        "TF_SKIPS",
        "requests",
        "queue",
        "later requests that may pass one waiting for memory",
        least=0,
    )
    queue_rows: int = switch(
        0, "TF_QUEUE_ROWS", "rows", "queue", "prompt rows that may wait; 0: 64 contexts", least=0
    )
    queue_requests: int = switch(
        4096, "TF_QUEUE_REQUESTS", "requests", "queue", "requests that may wait", least=1
    )
    body_limit: int = switch(
        64 << 20,
        "TF_BODY_LIMIT",
        "bytes",
        "server",
        "largest request body; 16 of these are read at once",
        least=1024,
    )
    read_timeout: float = switch(
        120.0, "TF_READ_TIMEOUT", "seconds", "server", "time to read a request", least=0.01
    )
    reader_timeout: float = switch(
        60.0,
        "TF_READER_TIMEOUT",
        "seconds",
        "server",
        "a reader that takes nothing is dropped",
        least=0.01,
    )
    keepalive: float = switch(
        10.0,
        "TF_KEEPALIVE",
        "seconds",
        "server",
        "time between comments on a silent stream",
        least=0.01,
    )
    shutdown_timeout: float = switch(
        20.0,
        "TF_SHUTDOWN_TIMEOUT",
        "seconds",
        "server",
        "time for replies in progress at SIGTERM",
        least=0,
    )
    cors: str = switch(
        "", "TF_CORS", "origin", "server", "origin allowed to call from a browser; empty: none"
    )
    reasoning_field: str = switch(
        "both",
        "TF_REASONING_FIELD",
        "choice",
        "server",
        "field that carries reasoning",
        choices=("both", "reasoning", "reasoning_content"),
    )
    log: str = switch(
        "info",
        "TF_LOG",
        "choice",
        "server",
        "least level that is logged",
        choices=("debug", "info", "warning", "error"),
    )
    trace: str = switch("", "TF_TRACE", "file", "server", "file for the turns' trace; empty: none")
    admin: bool = switch(False, "TF_ADMIN", "flag", "server", "answer the routes under /debug")
    cache_dir: str = switch(
        "", "TF_CACHE_DIR", "folder", "engine", "for compiled artifacts; empty: the user's cache"
    )
    # The names that a flag or the environment gave: no preset changes them.
    given: frozenset[str] = field(default=frozenset(), compare=False)


def switches() -> dict[str, tuple[Switch, Any]]:
    """The table: field name to its switch and default."""
    found = {}
    for item in fields(Settings):
        if "switch" not in item.metadata:
            continue
        assert item.default is not MISSING, item.name
        found[item.name] = (item.metadata["switch"], item.default)
    return found


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Put every switch of the table on a command line; unset flags stay out of the result."""
    for name, (entry, default) in switches().items():
        flag = "--" + name.replace("_", "-")
        kind = "|".join(filter(None, entry.choices)) or entry.unit
        text = f"{entry.help} [{kind}; {entry.env}; {default!r}]".replace("%", "%%")
        if isinstance(default, bool):
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
            continue
        parser.add_argument(flag, default=argparse.SUPPRESS, metavar="X", help=text)
        if entry.off is not None:
            parser.add_argument(
                f"--no-{flag[2:]}",
                dest=name,
                action="store_const",
                const=entry.off,
                default=argparse.SUPPRESS,
                help=f"the same as {flag} {entry.off}",
            )


def read(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings of this process: flags over environment over defaults. Raises `StartError`."""
    values: dict[str, Any] = {}
    table = switches()
    refuse_unknown_fills(environ, {entry.env for entry, _ in table.values()})
    for name, (entry, default) in table.items():
        if name in flags:
            given, source = flags[name], "--" + name.replace("_", "-")
        elif entry.env in environ:
            given, source = environ[entry.env], entry.env
        else:
            continue
        if isinstance(given, str):
            values[name] = parse(given, entry, default, source)
        else:
            values[name] = checked(given, entry, source)
    return Settings(**values, given=frozenset(values))


def refuse_unknown_fills(environ: Mapping[str, str], known: set[str]) -> None:
    """A misspelt fill switch would change nothing and say nothing; other names may be anyone's."""
    for name in environ:
        if name.startswith("TF_FILL_") and name not in known:
            fills = ", ".join(sorted(env for env in known if env.startswith("TF_FILL_")))
            raise StartError(f"there is no setting {name}; there are {fills}")
