"""A guard of JAX's configuration against kernels that change it as they are traced."""

# JAX declares no types of its options.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
from collections.abc import Generator

from attn_tune.schema.errors import UnsupportedError


class ChangedConfigError(UnsupportedError):
    """A config changed JAX's configuration. ``stays``: the process still has the change."""

    def __init__(self, message: str, *, stays: bool):
        super().__init__(message)
        self.stays = stays


@contextlib.contextmanager
def unchanged_configuration() -> Generator[None]:
    """Restore JAX's configuration, so that nothing later is traced under another.

    Raises:
      ChangedConfigError: an option was changed inside.
    """
    import jax

    before = jax.config.values
    try:
        yield
    finally:
        changed = _changed(before)
        for name in changed:
            jax.config.update(name, before[name])
    if changed:
        # A value that one thread has set for itself cannot be reset from outside.
        options = ", ".join(f"{name} to {value!r}" for name, value in changed.items())
        raise ChangedConfigError(
            f"tracing it sets options of JAX ({options}), which everything after it would be traced under; use the "
            "context managers of JAX, which end",
            stays=bool(_changed(before)),
        )


def _changed(before: dict[str, object]) -> dict[str, object]:
    """The options that have another value now; those that an import has added since do not count."""
    import jax

    return {name: value for name, value in jax.config.values.items() if before.get(name, value) != value}
