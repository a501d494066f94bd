"""HTTP: parse, check, answer in OpenAI's words; no tensors."""
