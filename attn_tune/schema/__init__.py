"""The stored nouns: plain frozen dataclasses, standard library only. Every name is loaded when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

DECIDES_NO_CODE = "records, and errors with their words"

_PUBLIC = {
    "config_digest": "config",
    "config_from_dict": "config",
    "config_to_dict": "config",
    "config_to_json": "config",
    "Decision": "decision",
    "Rule": "decision",
    "Device": "device",
    "canonical_json": "digest",
    "digest_json": "digest",
    "digest_text": "digest",
    "Environment": "environment",
    "Grade": "environment",
    "AttnTuneError": "errors",
    "DisagreementError": "errors",
    "GateError": "errors",
    "IntegrityError": "errors",
    "LockfileError": "errors",
    "NoDataError": "errors",
    "StorageError": "errors",
    "UnsupportedError": "errors",
    "UsageError": "errors",
    "unknown_name": "errors",
    "Field": "signature",
    "FieldKind": "signature",
    "Signature": "signature",
    "Measurement": "trial",
    "OutputError": "trial",
    "Prediction": "trial",
    "Protocol": "trial",
    "Resources": "trial",
    "Shortage": "trial",
    "Stage": "trial",
    "Status": "trial",
    "Trial": "trial",
}

if TYPE_CHECKING:
    # The same names once more, for what reads types and runs nothing: type checkers and editors.
    from attn_tune.schema.config import (
        config_digest as config_digest,
        config_from_dict as config_from_dict,
        config_to_dict as config_to_dict,
        config_to_json as config_to_json,
    )
    from attn_tune.schema.decision import Decision as Decision, Rule as Rule
    from attn_tune.schema.device import Device as Device
    from attn_tune.schema.digest import (
        canonical_json as canonical_json,
        digest_json as digest_json,
        digest_text as digest_text,
    )
    from attn_tune.schema.environment import Environment as Environment, Grade as Grade
    from attn_tune.schema.errors import (
        AttnTuneError as AttnTuneError,
        DisagreementError as DisagreementError,
        GateError as GateError,
        IntegrityError as IntegrityError,
        LockfileError as LockfileError,
        NoDataError as NoDataError,
        StorageError as StorageError,
        UnsupportedError as UnsupportedError,
        UsageError as UsageError,
        unknown_name as unknown_name,
    )
    from attn_tune.schema.signature import (
        Field as Field,
        FieldKind as FieldKind,
        Signature as Signature,
    )
    from attn_tune.schema.trial import (
        Measurement as Measurement,
        OutputError as OutputError,
        Prediction as Prediction,
        Protocol as Protocol,
        Resources as Resources,
        Shortage as Shortage,
        Stage as Stage,
        Status as Status,
        Trial as Trial,
    )
else:

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'attn_tune.schema' has no attribute {name!r}")
        module = importlib.import_module(f"attn_tune.schema.{_PUBLIC[name]}")
        globals()[name] = value = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
