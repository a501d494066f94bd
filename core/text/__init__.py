"""Text: tokenizer, chat templates and the sections of a reply."""
