"""The lab database (SQLite) and config packs written from it."""

from attn_tune.db.database import Database as Database
from attn_tune.db.health import Description as Description
from attn_tune.db.runs import RunStatus as RunStatus
