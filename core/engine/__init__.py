"""The torch engine: a family bound to a backend's ops, driven through `core/engine_api`."""
