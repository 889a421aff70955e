"""Trials as decisions need them, read without what decisions do not look at."""

import json
import sqlite3
from collections.abc import Iterable, Iterator

from attn_tune.db import decision_queries
from attn_tune.db.batches import Batch
from attn_tune.db.catalog import Catalog
from attn_tune.db.findings import Finding
from attn_tune.db.samples import decode_samples
from attn_tune.schema import IntegrityError, Status

_STATUSES = {str(status): status for status in Status}


def read_findings(
    connection: sqlite3.Connection, catalog: Catalog, batch: Batch, ids: Iterable[int]
) -> Iterator[tuple[int, Finding]]:
    """``(id, finding)`` of some trials of one batch, by id.

    Raises:
      IntegrityError: a row says what no trial can.
    """
    device = catalog.device(batch.device_id, batch.evidence_id)
    problem = (catalog.signature(batch.signature_id), batch.direction, device)
    kernel = catalog.kernel(batch.kernel_id)
    environment = catalog.environment(batch.environment_id)
    software = catalog.software(batch.environment_id)
    rows = connection.execute(decision_queries.FINDINGS_BY_ID, (json.dumps(sorted(ids)),))
    for row in rows:
        trial_id, config_id, status, is_heuristic, round_id, verified, after_ms, *rest = row
        median, coded, repeatable, features = rest
        digest, config = catalog.config_data(config_id)
        try:
            samples = () if coded is None else decode_samples(coded, median)
        except (ValueError, TypeError, OverflowError) as error:
            raise IntegrityError(f"trial {trial_id} cannot be: {error}") from error
        finding = Finding(
            batch.run_id,
            problem,
            kernel,
            batch.part,
            environment,
            software,
            config,
            digest,
            _STATUSES.get(status) or Status(status),
            bool(is_heuristic),
            round_id,
            catalog.worst_error(verified),
            batch.started_us + 1000 * after_ms,
            samples,
            None if repeatable is None else bool(repeatable),
            features,
        )
        yield trial_id, finding
