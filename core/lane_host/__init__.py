"""The lane host: one engine thread that owns the queue, the lanes and the turn."""
