"""Questions and entries without a direction: they are about the first one of the op."""

import json

import attn_tune

SIGNATURE = "probe_paged/v1 b=3 s=64 n=2 h=16 page=8 dtype=float32 workload=uni"


def test_lookups_without_a_direction_ask_for_the_first_of_the_op():
    assert attn_tune.lookup("probe_paged", SIGNATURE).direction == "step"
    assert attn_tune.lookup("probe_paged", SIGNATURE).direction == "step"  # from the memory of the first
    assert attn_tune.explain("probe_paged", SIGNATURE).direction == "step"


def test_entries_without_a_direction_use_a_config_in_the_first_of_the_op(command, tmp_path):
    with attn_tune.use_config("probe_paged", "plain", {}):
        assert attn_tune.lookup("probe_paged", SIGNATURE).rung == "override"
    file = tmp_path / "overrides.json"
    command("override", "add", "use", "probe_paged/plain", "--file", file)
    (entry,) = json.loads(command("override", "list", "--json", "--file", file).stdout)["entries"]
    assert entry["direction"] == "step"
