"""All that decides an answer: the settings of the process, and the packs and overrides of ``with`` blocks over them."""

import functools
from collections.abc import Hashable
from typing import Any

from attn_tune.packs.override_files import OverridesFile
from attn_tune.packs.reader import Pack
from attn_tune.runtime.active.settings import Settings
from attn_tune.runtime.active.sources import Source, overlay_source
from attn_tune.runtime.overrides.active import Overrides
from attn_tune.schema.digest import digest_json

# A job asks some hundreds of questions; past this the memo is emptied rather than grow.
MEMO_LIMIT = 65536

type Layer = Pack | OverridesFile


class Layers:
    """Packs and overrides of ``with`` blocks, innermost first, and the view that goes with them."""

    __slots__ = ("layers", "view")

    def __init__(self, layers: tuple[Layer, ...] = ()):
        self.layers = layers
        self.view: View | None = None


class View:
    """All that decides an answer, immutable, and the answers found so far, by question.

    Attributes:
      settings: what the whole process decides by.
      layers: the packs and overrides of ``with`` blocks, innermost first.
      sources: places where packs are looked for, in order.
      entries: remembered answers by question.
      agreement: the verdicts of the job's processes by round and topic, see ``rank_agreement``.
    """

    def __init__(self, settings: Settings, layers: tuple[Layer, ...] = ()):
        self.settings = settings
        self.layers = layers
        packs = [layer for layer in layers if isinstance(layer, Pack)]
        self.sources: tuple[Source, ...] = (*map(overlay_source, packs), *settings.sources)
        self.agreement: dict[tuple[int, str], str] = {}
        self.entries: dict[Hashable, Any] = {}

    @functools.cached_property
    def overrides(self) -> Overrides:
        """Overrides of blocks, then those of files, and the ``never`` entries of all active packs.

        Where a file is ``only``, no pack is read, and so no entries of one.
        """
        own = [layer for layer in self.layers if isinstance(layer, OverridesFile)]
        files = [*own, *self.settings.overrides]
        is_alone = any(file.only for file in files)
        packs = () if is_alone else (source.pack for source in self.sources)
        return Overrides(files, (pack.quarantine for pack in packs if pack))

    @functools.cached_property
    def digest(self) -> str:
        """Names all that decides an answer. Reads the sums of all packs."""
        return digest_json([self.settings.digest, *(layer.digest for layer in self.layers)])

    def put[T](self, key: Hashable, value: T) -> T:
        """Remember an answer; return the one to use, which is another thread's if that was first."""
        if len(self.entries) >= MEMO_LIMIT:
            self.entries = {}
        return self.entries.setdefault(key, value)
