"""The lab database (SQLite), decisions from its trials, and packs that are released from it.

``store`` is the file, ``decide`` the choice of configs, ``compare`` the comparison of two sweeps, ``release`` the way
into packs. Other rooms import from here.
"""

from attn_tune.db.compare.sides import (
    Side as Side,
    side_of_database as side_of_database,
    side_of_pack as side_of_pack,
)
from attn_tune.db.compare.verdicts import (
    Compared as Compared,
    SidesCompared as SidesCompared,
    Verdict as Verdict,
    compare_sides as compare_sides,
    find_shifts as find_shifts,
)
from attn_tune.db.database import Database as Database
from attn_tune.db.decide.decisions import decide as decide, find_outvoted as find_outvoted
from attn_tune.db.decide.races import Race as Race
from attn_tune.db.decide.recorded import RecordedTrial as RecordedTrial
from attn_tune.db.decide.selection import Selection as Selection
from attn_tune.db.release.conflicts import Resolution as Resolution
from attn_tune.db.release.export import (
    PackSummary as PackSummary,
    export_pack as export_pack,
    objections_to as objections_to,
)
from attn_tune.db.release.gate import (
    GatePolicy as GatePolicy,
    Objection as Objection,
    needs_leave as needs_leave,
)
from attn_tune.db.release.imports import ImportSummary as ImportSummary, import_pack as import_pack
from attn_tune.db.release.merge_packs import MergedPack as MergedPack, merge_packs as merge_packs
from attn_tune.db.release.pack_diff import (
    Change as Change,
    diff_packs as diff_packs,
    diff_quarantine as diff_quarantine,
)
from attn_tune.db.store.garbage import (
    GarbageSummary as GarbageSummary,
    collect_garbage as collect_garbage,
)
from attn_tune.db.store.health import Description as Description
from attn_tune.db.store.merge import (
    MergeSummary as MergeSummary,
    check_source as check_source,
    merge_database as merge_database,
)
from attn_tune.db.store.past_searches import PastSearch as PastSearch
from attn_tune.db.store.run_progress import Activity as Activity, RunProgress as RunProgress
from attn_tune.db.store.runs import RunStatus as RunStatus
