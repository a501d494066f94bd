"""The wording of tools out of a checkpoint's own encoder, which is read and never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorfold.core.errors import StartError
from tensorfold.core.text.template import ChatTemplate
from tensorfold.families.dsv41.chat import CHAT
from tensorfold.families.dsv41.plugin import FAMILY
from tensorfold.families.glm53.plugin import FAMILY as OTHER

# In the manner of the release's: names of its own, and a module that would do harm if it were run.
ENCODER = '''
import json
raise SystemExit("an encoder was run")

odd = "\\d"
mark: str = "｜DSML｜"
opens, closes = "<think>", "</think>"
opening = "<think>"
closing = "</think>"

TOOLS = """## Tools

Use a "<{mark} calls>" block with "{{braces}}" and \\\\ and $NAME, think in {opens}...{closes}.

### Available Tool Schemas

{schemas}

Keep to {{them}} all.
"""

def render(tools):
    return TOOLS.format(
        schemas="\\n".join(json.dumps(one) for one in tools),
        mark=mark, opens=opening, closes=closing,
    )
'''
BEFORE = (
    '## Tools\n\nUse a "<｜DSML｜ calls>" block with "{braces}" and \\ and $NAME, think in '
    "<think>...</think>.\n\n### Available Tool Schemas\n\n"
)
AFTER = "\n\nKeep to {them} all.\n"
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "dé <b>", "parameters": {}}}
    for name in ("one", "two")
]


def encoder(folder: Path, text: str) -> Path:
    (folder / "encoding").mkdir(exist_ok=True)
    (folder / "encoding" / "encoding.py").write_text(text, encoding="utf-8")
    return folder


def rendered(template: str) -> str:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    return ChatTemplate(template).render(
        {"messages": messages, "tools": TOOLS, "add_generation_prompt": True}
    )


def test_the_checkpoints_words_stand_around_the_schemas_byte_by_byte(tmp_path: Path) -> None:
    chat = FAMILY.chat_in(encoder(tmp_path, ENCODER))
    schemas = [json.dumps(tool["function"], ensure_ascii=False) for tool in TOOLS]
    assert "Be kind.\n\n" + BEFORE + "\n".join(schemas) + AFTER in rendered(chat.template)
    assert chat.end_tokens == CHAT.end_tokens
    # All else is as without it.
    before, _, rest = rendered(chat.template).partition(BEFORE)
    own_before, _, own_rest = rendered(CHAT.template).partition("## Tools")
    assert before == own_before
    assert rest.partition(AFTER)[2] == own_rest.partition("in your calls.")[2]


def test_without_an_encoder_the_words_are_our_own(tmp_path: Path) -> None:
    assert FAMILY.chat_in(tmp_path) is CHAT
    assert OTHER.chat_in(tmp_path) is OTHER.chat


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("### Available Tool Schemas", "### Schemas"), "has 0 texts"),
        (("opening = ", 'OTHER = "### Available Tool Schemas"\nopening = '), "has 2 texts"),
        (("TOOLS.format(", "OTHERS.format("), "never fills in TOOLS"),
        (("closes=closing,", ""), "has a field 'closes' that nothing fills in"),
        (("closes=closing,", "closes=str(closing),"), "no one place for the schemas"),
        (("{schemas}\n", "{schemas}{schemas}\n"), "no one place for the schemas"),
        (("{schemas}\n", "{schemas!r}\n"), "has a field 'schemas' that nothing fills in"),
        (("{schemas}\n", "{schemas\n"), "is no text to fill in"),
        (("def render(tools):", "def render(tools:"), "is no Python that can be read"),
    ],
)
def test_an_encoder_that_cannot_be_understood_is_named(
    tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    assert change[0] in ENCODER
    folder = encoder(tmp_path, ENCODER.replace(*change))
    with pytest.raises(StartError, match=why) as error:
        FAMILY.chat_in(folder)
    assert str(folder / "encoding" / "encoding.py") in str(error.value)


def test_a_folder_without_the_file_or_with_one_too_large_is_named(tmp_path: Path) -> None:
    (tmp_path / "encoding").mkdir()
    with pytest.raises(StartError, match=r"encoding\.py cannot be read: No such file"):
        FAMILY.chat_in(tmp_path)
    with pytest.raises(StartError, match=r"encoding\.py is more than 1048576 bytes"):
        FAMILY.chat_in(encoder(tmp_path, ENCODER + "#" * (1 << 20)))
    encoder(tmp_path, "").joinpath("encoding", "encoding.py").write_bytes(b"\xff")
    with pytest.raises(StartError, match="is no Python that can be read"):
        FAMILY.chat_in(tmp_path)
