"""All that ``kill_database.py`` does to a lab database, by name."""

from kill_facts import Operation
from kill_recording import Checkpoint, Create, Migrate, Record, RecordMany
from kill_using import Collect, Export, ExportFolder, Import, Merge, Rebuild

from attn_tune.db.migrations import SCHEMA_VERSION

OLD_SCHEMAS = range(1, SCHEMA_VERSION)
OPERATIONS: dict[str, type[Operation]] = {
    "record": Record,
    "record_many": RecordMany,
    "checkpoint": Checkpoint,
    "create": Create,
    **{f"migrate_v{n}": type(f"Migrate{n}", (Migrate,), {"version": n}) for n in OLD_SCHEMAS},
    "rebuild": Rebuild,
    "merge": Merge,
    "collect": Collect,
    "export_file": Export,
    "export_folder": ExportFolder,
    "import": Import,
}
