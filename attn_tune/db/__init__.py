"""The lab database (SQLite) and config packs written from it."""

from attn_tune.db.database import Database as Database
from attn_tune.db.garbage import (
    GarbageSummary as GarbageSummary,
    collect_garbage as collect_garbage,
)
from attn_tune.db.health import Description as Description
from attn_tune.db.imports import ImportSummary as ImportSummary, import_pack as import_pack
from attn_tune.db.merge import MergeSummary as MergeSummary, merge_database as merge_database
from attn_tune.db.packs import (
    PackSummary as PackSummary,
    Selection as Selection,
    export_pack as export_pack,
)
from attn_tune.db.past import PastSearch as PastSearch
from attn_tune.db.runs import RunStatus as RunStatus
