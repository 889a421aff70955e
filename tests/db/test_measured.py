"""Configs that a sweep need not try again."""

from attn_tune.db import Database
from attn_tune.schema import Status
from tests.db.facts import DEVICE, ENVIRONMENT, KERNEL, SIGNATURE, begin, make_trial


def test_configs_refused_for_their_bits_are_not_measured_where_such_are_allowed(tmp_path):
    trial = make_trial(status=Status.UNSUPPORTED, repeatable=False)
    other = make_trial({"other": 1}, status=Status.UNSUPPORTED)
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        for one in (make_trial(), trial, other):
            database.record(run, one)

        def measured(**options):
            return database.measured(KERNEL, "fwd", SIGNATURE, DEVICE, ENVIRONMENT, **options)

        refused = {("", other.config_digest): Status.UNSUPPORTED}
        assert measured() == {("", trial.config_digest): Status.UNSUPPORTED, **refused}
        assert measured(allow_nondeterministic=True) == refused
