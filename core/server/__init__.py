"""The HTTP server: routes, wire formats and streams."""
