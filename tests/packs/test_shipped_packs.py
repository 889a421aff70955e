"""Every pack in the wheel is sound, and every row of it answers on the device it was measured on."""

from pathlib import Path

import pytest

import attn_tune
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.packs.reader import read_pack
from attn_tune.runtime.lookup.dispatch import lookup
from attn_tune.runtime.lookup.question import unsupported
from attn_tune.schema import Grade

FOLDER = Path(attn_tune.__file__).parent / "packs" / "shipped"
PACKS = sorted(p for p in FOLDER.iterdir() if p.suffix == ".atpack" or p.is_dir())


@pytest.mark.parametrize("path", PACKS, ids=lambda p: p.name)
def test_every_shipped_row_answers_where_it_was_measured(path):
    pack = read_pack(path)
    answered = 0
    for row in pack.rows:
        device = pack.devices[row.device]
        spec = get_kernel(f"{row.op}/{row.kernel}")
        op = get_op(row.op)
        problem = op.from_signature(op.parse_signature(row.signature))
        if reason := unsupported(spec, problem, row.direction, device):
            # Only a library that this machine has not may be in the way.
            assert "not installed" in reason or "was not found" in reason, reason
            continue
        answer = lookup(row.op, row.signature, row.direction, device=device, kernel=row.kernel)
        assert answer.config == dict(row.config)
        assert answer.source == f"{pack.name} {pack.version}"
        # A row whose kernel has changed since is not proof any more: sweep it again before shipping.
        assert answer.grade in (Grade.VERIFIED, Grade.PORTABLE)
        answered += 1
    assert answered > 0


def test_package_ships_a_pack():
    assert PACKS
