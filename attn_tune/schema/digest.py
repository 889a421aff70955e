"""Content digests: short, stable names for canonical text.

A digest is the first 16 bytes of BLAKE2b in hexadecimal, behind a tag that names the scheme, so that the
scheme can change without old names turning into wrong ones.
"""

import hashlib
import json
from typing import Any

TAG = "b2:"

# One encoder for all: json.dumps with options builds a new one for each call.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_text(text: str) -> str:
    """Names ``text``: ``"b2:"`` and 32 hexadecimal digits."""
    return TAG + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def canonical_json(value: Any) -> str:
    """One spelling for one value: sorted keys, no spaces, no NaN.

    Raises:
      ValueError: ``value`` holds NaN or an infinity.
      TypeError: ``value`` holds something JSON cannot say.
    """
    return _ENCODER.encode(value)


def digest_json(value: Any) -> str:
    """The digest of the canonical JSON of ``value``."""
    return digest_text(canonical_json(value))
