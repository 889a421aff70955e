"""All that ``kill_database.py`` does to a lab database, by name."""

from tests.soak.kill_facts import Operation
from tests.soak.kill_recording import Checkpoint, Create, Record, RecordMany
from tests.soak.kill_using import Collect, Export, ExportFolder, Import, Merge, Rebuild

OPERATIONS: dict[str, type[Operation]] = {
    "record": Record,
    "record_many": RecordMany,
    "checkpoint": Checkpoint,
    "create": Create,
    "rebuild": Rebuild,
    "merge": Merge,
    "collect": Collect,
    "export_file": Export,
    "export_folder": ExportFolder,
    "import": Import,
}
