"""The sides of a comparison, as a command line names them: a lab database, a pack, or a name of one."""

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.narrowing import Narrowing
from attn_tune.schema import Device, NoDataError
from attn_tune.schema.errors import StorageError, near_names

if TYPE_CHECKING:
    from attn_tune.db import Side


def open_side(name: str, stack: contextlib.ExitStack) -> "Side":
    """The side called ``name``: a path, or the name of a pack that calls find here. ``stack`` closes its database.

    Raises:
      NoDataError: there is no such file, and no pack of that name.
      IntegrityError, StorageError: it is damaged, or cannot be read.
    """
    from attn_tune.db import side_of_database, side_of_pack
    from attn_tune.packs.reader import read_pack
    from attn_tune.runtime.active.names import known_packs, pack_path

    try:
        path = pack_path(name)
    except StorageError:
        path = Path(name)
    if path.is_dir() or path.suffix == ".atpack":
        return side_of_pack(read_pack(path, signed=False), name)
    if not path.exists():
        packs = known_packs()
        raise NoDataError(
            f"there is no database and no pack at {path}, and no pack of that name is found here; "
            f"{near_names(name, packs) or f'names are {", ".join(packs)}'}"
        )
    return side_of_database(stack.enter_context(open_lab(path)), name)


def narrowed(sides: "tuple[Side, Side]", cases: Cases, device: Device | None) -> "tuple[tuple[Side, Side], Narrowing]":
    """The sides with the decisions that the options choose, and their filter.

    Raises:
      UsageError, NoDataError: as the filters of ``Cases``.
    """
    stored = [decision for side in sides for decision in side.decisions]
    narrowing = Narrowing(
        problems=cases.stored_points(d.signature.text for d in stored),
        kernels=cases.stored_kernels(d.kernel for d in stored),
        directions=cases.stored_directions(d.direction for d in stored),
        device=device,
    )
    a, b = (dataclasses.replace(side, decisions=tuple(narrowing.decisions(side.decisions))) for side in sides)
    return (a, b), narrowing
