"""SQL of the rows that are written once and found by what they say."""

FIND_DEVICE = "SELECT id FROM device WHERE digest = ?"
ADD_DEVICE = """
INSERT INTO device (digest, platform, family, variant, units, shared_bytes, l2_bytes, clock_mhz, bandwidth_gbs,
                    partition, power_watts)
VALUES (:digest, :platform, :family, :variant, :units, :shared_bytes, :l2_bytes, :clock_mhz, :bandwidth_gbs,
        :partition, :power_watts)
"""
GET_DEVICE = "SELECT * FROM device WHERE id = ?"

FIND_EVIDENCE = "SELECT id FROM device_evidence WHERE digest = ?"
ADD_EVIDENCE = "INSERT INTO device_evidence (digest, body) VALUES (?, ?)"
GET_EVIDENCE = "SELECT body FROM device_evidence WHERE id = ?"

FIND_ENVIRONMENT = "SELECT id FROM environment WHERE digest = ?"
ADD_ENVIRONMENT = """
INSERT INTO environment (digest, jax, jaxlib, triton, compiler, driver, attn_tune, source_hash)
VALUES (:digest, :jax, :jaxlib, :triton, :compiler, :driver, :attn_tune, :source_hash)
"""
GET_ENVIRONMENT = "SELECT * FROM environment WHERE id = ?"

FIND_KERNEL = "SELECT id FROM kernel WHERE op = ? AND name = ?"
ADD_KERNEL = "INSERT INTO kernel (op, name) VALUES (?, ?)"

FIND_SIGNATURE = "SELECT id FROM signature WHERE digest = ?"
ADD_SIGNATURE = "INSERT INTO signature (digest, op, version, text) VALUES (?, ?, ?, ?)"
ADD_SIGNATURE_FIELD = """
INSERT INTO signature_field (signature_id, position, name, int_value, text_value) VALUES (?, ?, ?, ?, ?)
"""
GET_SIGNATURE = "SELECT op, version FROM signature WHERE id = ?"
GET_SIGNATURE_FIELDS = """
SELECT name, int_value, text_value FROM signature_field WHERE signature_id = ? ORDER BY position
"""

FIND_CONFIG = """
SELECT id FROM config WHERE kernel_id = ? AND direction = ? AND part = ? AND digest = ?
"""
ADD_CONFIG = """
INSERT INTO config (kernel_id, direction, part, digest, body) VALUES (?, ?, ?, ?, ?)
"""

FIND_PROTOCOL = """
SELECT id FROM protocol
WHERE timer = ? AND warmup = ? AND flush_l2 = ? AND calls_per_sample = ? AND interleaved = ?
"""
ADD_PROTOCOL = """
INSERT INTO protocol (timer, warmup, flush_l2, calls_per_sample, interleaved) VALUES (?, ?, ?, ?, ?)
"""

FIND_TEXT = "SELECT id FROM text WHERE digest = ?"
ADD_TEXT = "INSERT INTO text (digest, body) VALUES (?, ?)"

FIND_VERIFICATION = "SELECT id FROM verification WHERE digest = ?"
ADD_VERIFICATION = "INSERT INTO verification (digest, is_right) VALUES (?, ?)"
ADD_VERIFICATION_ERROR = """
INSERT INTO verification_error (verification_id, position, output, error, allowed) VALUES (?, ?, ?, ?, ?)
"""
GET_VERIFICATION_ERRORS = """
SELECT output, error, allowed FROM verification_error WHERE verification_id = ? ORDER BY position
"""
FIND_RESOURCES = """
SELECT id FROM resources WHERE shared_bytes IS ? AND registers IS ? AND spill_bytes IS ? AND facts_id IS ?
"""
ADD_RESOURCES = """
INSERT INTO resources (shared_bytes, registers, spill_bytes, facts_id) VALUES (?, ?, ?, ?)
"""
FIND_OUTCOME = """
SELECT id FROM outcome
WHERE status = ? AND stage = ? AND is_heuristic = ? AND reason_id IS ? AND protocol_id IS ? AND round_id = ?
  AND repeatable IS ? AND features IS ?
"""
ADD_OUTCOME = """
INSERT INTO outcome (status, stage, is_heuristic, reason_id, protocol_id, round_id, repeatable, features)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
GET_PROTOCOL = "SELECT * FROM protocol WHERE id = ?"
GET_KERNEL = "SELECT op, name FROM kernel WHERE id = ?"
GET_CONFIG = """
SELECT kernel.op || '/' || kernel.name, config.body FROM config JOIN kernel ON kernel.id = config.kernel_id
WHERE config.id = ?
"""
GET_CONFIG_DATA = "SELECT digest, body FROM config WHERE id = ?"
