"""What workflow code asks for: one module a family of commands, each registering its types.

Adding a command touches one module: write `validate` and `apply`, register the type, import the module here.
"""

from __future__ import annotations

from durable.commands import activities, local_activities, markers, terminal, timers

__all__ = ["activities", "local_activities", "markers", "terminal", "timers"]
