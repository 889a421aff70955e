"""``attn-tune validate`` with a device that answers at once: its exit codes, the inputs it judges, an interrupt."""

import dataclasses
import json
import re

from attn_tune.kernels.registry import get_kernel
from attn_tune.schema import Status
from attn_tune.tuner.protocol import FEATURE_SEEDS, SWEPT_SEEDS
from tests.cli.test_commands import fake_worker, home, run

__all__ = ["fake_worker", "home"]


def test_validate_fails_on_a_wrong_kernel(fake_worker, monkeypatch):
    words = ("validate", "-k", "flash_attention/xla", "-d", "bwd", "--feature", "sinks_window")
    good = run(*words)
    assert good.exit_code == 0, good.stderr
    monkeypatch.setattr(fake_worker, "status", Status.INCORRECT)
    bad = run(*words, "--json")
    assert bad.exit_code == 1
    (row,) = json.loads(bad.stdout)["validations"]
    assert (row["status"], row["output"], row["worst_error"]) == ("incorrect", "dk", 2.0)


def test_validate_runs_no_untuned_config_that_a_call_would_not(fake_worker, monkeypatch):
    searches = get_kernel("flash_attention/xla").searches
    tight = dataclasses.replace(searches["bwd"], infeasible=lambda problem, device, config: "there is no room")
    monkeypatch.setitem(searches, "bwd", tight)
    done = run("validate", "-k", "flash_attention/xla", "-d", "bwd", "--feature", "sinks_window", "--json")
    assert done.exit_code == 3
    (row,) = json.loads(done.stdout)["validations"]
    assert (row["status"], row["reason"]) == ("unsupported", "its untuned config cannot run: there is no room")


def test_validate_judges_the_inputs_that_a_sweep_would(fake_worker, monkeypatch):
    seeds = []
    once = fake_worker.run
    monkeypatch.setattr(
        fake_worker,
        "run",
        lambda self, request: (seeds.append(request.seeds), once(self, request))[1],
    )
    run("validate", "-k", "flash_attention/xla", "-d", "bwd", "--feature", "sinks_window")
    assert seeds == [(*SWEPT_SEEDS, *FEATURE_SEEDS)]


def test_validate_shows_what_it_had_done_when_it_was_interrupted(fake_worker, monkeypatch):
    once, ran = fake_worker.run, []

    def third_is_interrupted(self, request):
        ran.append(request)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return once(self, request)

    monkeypatch.setattr(fake_worker, "run", third_is_interrupted)
    words = ("validate", "-k", "flash_attention/xla", "-d", "bwd")
    result = run(*words)
    assert result.exit_code == 130
    assert result.stdout.count("flash_attention/xla") == 2
    assert "2 checks: 2 ok" in result.stderr
    assert re.search(r"not validated: \d+ checks", result.stderr)
    assert result.stderr.rstrip().endswith("interrupted")
    ran.clear()
    in_json = run(*words, "--json")
    assert (in_json.exit_code, len(json.loads(in_json.stdout)["validations"])) == (130, 2)
    ran[:] = [None] * 2
    none = run(*words)
    assert (none.exit_code, none.stdout) == (130, "")
