"""One judged model as lines for a terminal and for its card."""

from pathlib import Path

from tokenizers import Tokenizer

from tensorfold.tools.tiny import heldout
from tensorfold.tools.tiny.judge import (
    FAR,
    Subject,
    bits_of,
    drafted_words,
    held_out_chats,
    judge_prompts,
    prose_bits,
    token_bytes,
)
from tensorfold.tools.tiny.lines import line_in
from tensorfold.tools.tiny.tokens import Renderer

CHATS = 100


def judged(
    subject: Subject, folder: Path, held: Path, *, length: int, works: int | None
) -> list[str]:
    """Every figure of the judge for the model in `folder`, one a line; `length` rows of prose."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    renderer = Renderer((folder / "chat_template.jinja").read_text("utf-8"))
    line, sets = line_in(folder), heldout.read(held)
    verdict = judge_prompts(subject, sets, tokenizer, renderer, line)
    lines = []
    for name, count in verdict.counts.items():
        bar = f" (bar {line.bars[name]})" if name in line.bars else ""
        total = verdict.totals.get(name, verdict.totals["questions"])
        lines.append(f"{name}: {count} of {total}{bar}")
    lines += drafted_words(subject.rounds)
    prose = sets["prose"][:works]
    bits = prose_bits(subject, tokenizer, prose, length)
    lines.append(f"held-out prose, bits a byte: {bits['whole'].per_byte:.3f}")
    if bits["far"].size:
        lines.append(
            f"  before row {FAR}: {bits['near'].per_byte:.3f}, from it on: "
            f"{bits['far'].per_byte:.3f} ({bits['fresh'].per_byte:.3f} read from its own start)"
        )
    chats = [tokenizer.encode(text, add_special_tokens=False).ids
             for text in held_out_chats(renderer, line, CHATS)]  # fmt: skip
    total_bits = sum(float(bits_of(subject, ids).sum()) for ids in chats)
    size = sum(int(token_bytes(tokenizer, ids)[1:].sum()) for ids in chats)
    lines.append(f"chats of another seed, bits a byte (prompts too): {total_bits / size:.3f}")
    texts = [tokenizer.encode(row["text"], add_special_tokens=False).ids for row in prose]
    dropped = subject.dropped(texts[0][:FAR])
    if dropped is not None:
        for layer, share in dropped.items():
            lines.append(f"layer {layer}: {share:.3f} of the keys visible at row {FAR} dropped")
    for name, sets_ids in (("prose", [ids[:2000] for ids in texts]), ("chats", chats)):
        pairs = [pair for ids in sets_ids if (pair := subject.draft_agreement(ids)) is not None]
        if len(pairs) == len(sets_ids):
            good, rows = sum(good for good, _ in pairs), sum(rows for _, rows in pairs)
            lines.append(
                f"drafts of depth 1 accepted on held-out {name}: {good / rows:.3f} of {rows}"
            )
    lines.append("")
    lines += [f"miss: {miss}" for miss in verdict.misses]
    lines.append("")
    lines += [f"> {asked}\n{reply}\n" for asked, reply in verdict.replies]
    return lines
