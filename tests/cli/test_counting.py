"""The progress of commands that do one thing after another."""

import io

from attn_tune.commands.shared.counting import counting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def begin_all(stream, monkeypatch):
    monkeypatch.setattr("sys.stderr", stream)
    seen = []
    with counting(3, "checks") as begin:
        for group, name in (("a fwd", "one"), ("a fwd", "two"), ("b fwd", "three")):
            begin(group, name)
            seen.append(stream.getvalue())
    return seen


def test_a_log_has_one_line_for_each_group_before_it_runs(monkeypatch):
    first, second, third = begin_all(io.StringIO(), monkeypatch)
    assert first == second == "a fwd: 0/3 checks done\n"
    assert third == first + "b fwd: 2/3 checks done\n"


def test_a_terminal_has_one_line_that_is_redrawn_and_taken_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    begin_all(stream, monkeypatch)
    drawn = stream.getvalue()
    assert "0/3" in drawn
    assert drawn.rstrip().endswith("\x1b[2K"), "nothing of it stays"
