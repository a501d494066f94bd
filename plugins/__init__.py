"""The plugin seam: what a plugin may implement, who is installed, and who is chosen.

A plugin is a module named by an entry point of the group `tensorfold`:

    from tensorfold.plugins import hookimpl

    @hookimpl
    def register_backends():
        return [BACKEND]
"""

from tensorfold.plugins.hookspecs import PROJECT, hookimpl, hookspec

__all__ = ["PROJECT", "hookimpl", "hookspec"]
