"""The compiler log keeps answers: a continued audit asks for nothing twice."""

import pytest

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema import Shortage, UsageError
from attn_tune.schema.trial import Resources, Status
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.protocol import ConfigRef
from tools.audit.journal import Journal

SIZES = {"batch": 1, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 64, "v_head_dim": 64}
SIGNATURE = Problem(**SIZES, q_len=512, kv_len=512).signature


class OwnCompiler:
    """Of odd blocks it says that they do not fit."""

    def __init__(self):
        self.asked = []

    def compile(self, refs, *, whole=False):
        for index, ref in reversed(list(enumerate(refs))):
            block = ref.config["block"]
            self.asked.append((block, whole))
            if block % 2:
                lack = Shortage(resource="vmem", needed=block, limit=1)
                yield (
                    index,
                    Compiled(
                        status=Status.OUT_OF_RESOURCES,
                        reason=f"one\ntwo ü {block}",
                        shortage=lack,
                    ),
                )
            else:
                found = Resources(registers=block, spill_bytes=0)
                yield index, Compiled(status=Status.COMPILED, resources=found, compile_ms=1.5)


def refs(*blocks):
    return [ConfigRef(kernel="k", signature=SIGNATURE, direction="fwd", config={"block": block}) for block in blocks]


def ask(path, *blocks, whole=False, scope="here"):
    """Returns the answers by position, and the compilations that reached the compiler."""
    compiler = OwnCompiler()
    pool = Journal(path).wrap(compiler, lambda ref: scope)
    return dict(pool.compile(refs(*blocks), whole=whole)), compiler.asked


def test_an_answer_in_the_log_is_not_compiled_again_and_reads_as_it_was(tmp_path):
    path = tmp_path / "j.jsonl"
    first, asked = ask(path, 2, 3)
    assert sorted(asked) == [(2, False), (3, False)]
    again, asked = ask(path, 4, 3, 2)
    assert asked == [(4, False)]
    assert (again[2], again[1]) == (first[0], first[1])


@pytest.mark.parametrize("other", [{"whole": True}, {"scope": "there"}])
def test_another_question_than_those_in_the_log_is_compiled(tmp_path, other):
    path = tmp_path / "j.jsonl"
    ask(path, 2)
    assert ask(path, 2, **other)[1]


def test_a_line_of_the_log_that_was_cut_off_is_compiled_again_and_later_ones_are_kept(tmp_path):
    path = tmp_path / "j.jsonl"
    ask(path, 2, 4)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert len(ask(path, 2, 4)[1]) == 1
    assert ask(path, 2, 4)[1] == []


@pytest.mark.parametrize("text", ["notes\n", '{"format": "other"}\n', "[]"])
def test_a_file_that_is_no_log_is_left_as_it_is(tmp_path, text):
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"j\.jsonl is not a journal"):
        Journal(path)
    assert path.read_text() == text
