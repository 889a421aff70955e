"""SQL that finds and deletes what nothing rests on; run inside one transaction."""

# The triggers that keep facts as they are; they are put back word for word.
REFUSALS = """
SELECT name, sql FROM sqlite_schema
WHERE type = 'trigger' AND tbl_name IN (SELECT name FROM sqlite_schema WHERE type = 'table')
"""
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"

DROP_REPLACED_PACKS = """
DELETE FROM imported_pack WHERE id NOT IN (SELECT pack_id FROM imported_row)
    AND id < (SELECT max(id) FROM imported_pack)
"""
DROP_EMPTY_RUNS = """
DELETE FROM run WHERE status <> 'running' AND id < (SELECT max(id) FROM run) AND {empty}
"""

# For each batch when its last trial started, and its last one that was ok and whole; then for each kernel and problem
# the environment that decides, and the environments that were last in use before that one was.
FIND_SUPERSEDED = (
    """CREATE TEMP TABLE batch_age AS
    SELECT b.first_id, b.last_id, b.signature_id, b.device_id, b.direction, b.kernel_id, b.environment_id,
           e.digest AS environment, b.started_us + 1000 * max(d.started_after_ms) AS age,
           CASE b.part WHEN ''
                THEN b.started_us + 1000 * max(iif(o.status = 'ok', d.started_after_ms, NULL)) END AS ok_age
    FROM trial_batch b CROSS JOIN trial_data d ON d.id BETWEEN b.first_id AND b.last_id
    JOIN environment e ON e.id = b.environment_id
    JOIN outcome o ON o.id = d.outcome_id
    GROUP BY b.first_id""",
    """CREATE TEMP TABLE environment_age AS
    SELECT signature_id, device_id, direction, kernel_id, environment_id, max(age) AS age
    FROM temp.batch_age GROUP BY 1, 2, 3, 4, 5""",
    """CREATE TEMP TABLE deciding AS
    SELECT signature_id, device_id, direction, kernel_id, environment_id FROM (
        SELECT *, row_number() OVER (PARTITION BY signature_id, device_id, direction, kernel_id
                                     ORDER BY ok_age DESC, environment DESC) AS place
        FROM temp.batch_age WHERE ok_age IS NOT NULL
    ) WHERE place = 1""",
    """CREATE TEMP TABLE superseded AS
    SELECT batch_age.first_id, batch_age.last_id, batch_age.signature_id
    FROM temp.deciding
    JOIN temp.environment_age AS newest USING (signature_id, device_id, direction, kernel_id, environment_id)
    JOIN temp.environment_age AS older USING (signature_id, device_id, direction, kernel_id)
    JOIN temp.batch_age ON batch_age.signature_id = older.signature_id AND batch_age.device_id = older.device_id
        AND batch_age.direction = older.direction AND batch_age.kernel_id = older.kernel_id
        AND batch_age.environment_id = older.environment_id
    WHERE older.age < newest.age""",
)
SUPERSEDED_TABLES = ("superseded", "deciding", "environment_age", "batch_age")
SUPERSEDED_SIGNATURES = """
SELECT text FROM signature WHERE id IN (SELECT signature_id FROM temp.superseded)
"""
DROP_SUPERSEDED = """
DELETE FROM trial_data WHERE id IN (
    SELECT d.id FROM temp.superseded s CROSS JOIN trial_data d ON d.id BETWEEN s.first_id AND s.last_id
) {kept}
"""
