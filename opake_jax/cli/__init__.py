"""How does one ask from a shell? The console script `opake-jax`.

Each command reads its arguments into an immutable question, asks the room that knows, and prints an
answer rounded to its private side, or with `--json` the whole of it. Rooms are imported when a command
needs them, so that help is instant and one epsilon does not pay for a training stack.
"""

from opake_jax.cli._main import main

__all__ = ["main"]
