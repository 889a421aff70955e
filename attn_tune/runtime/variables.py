"""The environment variables of the package, and a word about one that looks like them and is none."""

from collections.abc import Mapping

from attn_tune.devices.identity import DEVICE_AS
from attn_tune.packs.signing import TRUSTED
from attn_tune.runtime.active.sources import USER_PACKS
from attn_tune.runtime.determinism import VARIABLE as DETERMINISTIC
from attn_tune.runtime.misses import ON_MISS
from attn_tune.runtime.overrides.active import VARIABLE as OVERRIDES
from attn_tune.runtime.unproven import VARIABLE as UNPROVEN
from attn_tune.schema.logs import log

DB = "ATTN_TUNE_DB"
VARIABLES = (USER_PACKS, OVERRIDES, ON_MISS, DEVICE_AS, DETERMINISTIC, UNPROVEN, TRUSTED, DB)

_told: set[str] = set()


def unknown(environ: Mapping[str, str]) -> list[str]:
    """The variables of ``environ`` that begin like those of the package and are none of them."""
    return sorted(name for name in environ if name.startswith("ATTN_TUNE") and name not in VARIABLES)


def warn_of_unknown(environ: Mapping[str, str]) -> None:
    """Log each ``unknown`` variable once a process."""
    for name in unknown(environ):
        if name not in _told:
            import difflib  # Only for this message: lookups must not wait for it.

            _told.add(name)
            (near,) = difflib.get_close_matches(name, VARIABLES, 1, cutoff=0.0)
            log.warning("no variable is named %s, and nothing reads it; the nearest name is %s", name, near)
