"""The torch engine: a family's model bound to a backend's ops."""
