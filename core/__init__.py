"""The engine: contracts, lane host, torch engine, checkpoints, text and server."""
