"""Every question that was answered since the packs last changed, for ``freeze``."""

from collections.abc import Iterator

from attn_tune.runtime.answer import Answer
from attn_tune.runtime.locks import Lock
from attn_tune.schema.device import Device

MAX_QUESTIONS = 65536

_lock = Lock()

type _Question = tuple[str, str, str, str, Device]


class Ledger:
    """Answers by question. One question has several if overlays that came and went answered it differently."""

    def __init__(self) -> None:
        self._answers: dict[_Question, list[Answer]] = {}
        self.is_full = False

    def note(self, asked: str, device: Device, answer: Answer) -> None:
        """Remembers an answer, once; past ``MAX_QUESTIONS`` it only remembers that it did not."""
        question = (answer.op, answer.direction, answer.signature, asked, device)
        with _lock:
            if question not in self._answers and len(self._answers) >= MAX_QUESTIONS:
                self.is_full = True
                return
            known = self._answers.setdefault(question, [])
            if not any(_same(answer, other) for other in known):
                known.append(answer)

    def answers(self) -> Iterator[tuple[str, Device, list[Answer]]]:
        """(kernel that was asked for or ``""``, device, different answers) of every question."""
        with _lock:
            found = list(self._answers.items())
        for (_, _, _, asked, device), answers in found:
            yield asked, device, list(answers)


def _same(a: Answer, b: Answer) -> bool:
    return (a.kernel, a.config) == (b.kernel, b.config)
