"""The stored nouns: plain frozen dataclasses, standard library only."""

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
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
    # Trials take a tenth of the first lookup's time to import, and no lookup needs them.
    _OF_TRIALS = (
        "Measurement",
        "OutputError",
        "Prediction",
        "Protocol",
        "Resources",
        "Shortage",
        "Stage",
        "Status",
        "Trial",
    )

    def __getattr__(name: str) -> Any:
        if name not in _OF_TRIALS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.trial"), name)


DECIDES_NO_CODE = "records, and errors with their words"
