"""DeepSeek-V4.1-Flash (deepseek_v41): Engram, windowed and compressed attention, DSpark."""
