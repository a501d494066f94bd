"""Messages to ids, ids to text, reasoning apart from content; no tensors."""

from tensorfold.core.text.reader import Markers, Part, Reader, ReadingRules, ends_at_stop
from tensorfold.core.text.text import Defaults, Prompt, Text, TooLong, load_text
from tensorfold.core.text.tokenizer import Vocabulary

__all__ = [
    "Defaults",
    "Markers",
    "Part",
    "Prompt",
    "Reader",
    "ReadingRules",
    "Text",
    "TooLong",
    "Vocabulary",
    "ends_at_stop",
    "load_text",
]
