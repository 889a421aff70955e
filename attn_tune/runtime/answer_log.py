"""A log of the answers since the settings last changed, for ``freeze``."""

from attn_tune.runtime.locks import Lock
from attn_tune.runtime.lookup.answer import Answer
from attn_tune.schema.device import Device

MAX_ANSWERS = 65536

_lock = Lock()


class AnswerLog:
    """Different answers of every question, of which ``with`` blocks that came and went may make several.

    ``is_full`` says that answers past ``MAX_ANSWERS`` were not remembered.
    """

    def __init__(self) -> None:
        self._answers: dict[object, tuple[str, Device, Answer]] = {}
        self.is_full = False

    def note(self, asked: str, device: Device, answer: Answer) -> None:
        """Remember an answer, once. ``asked`` is the kernel that the caller named, ``""`` for any."""
        question = (answer.op, answer.direction, answer.signature, asked, device)
        key = (question, answer.kernel, repr(answer.config))
        with _lock:
            self.is_full |= len(self._answers) >= MAX_ANSWERS and key not in self._answers
            if not self.is_full:
                self._answers.setdefault(key, (asked, device, answer))

    def forget(self, kernel: str, direction: str = "", signature: str = "") -> None:
        """Drop the answers of a kernel, ``"op/name"``, that could not run: all, or those to one question."""
        with _lock:
            for key, (_, _, answer) in list(self._answers.items()):
                is_asked = not signature or (answer.direction, answer.signature) == (direction, signature)
                if f"{answer.op}/{answer.kernel}" == kernel and is_asked:
                    del self._answers[key]

    @property
    def answers(self) -> list[tuple[str, Device, Answer]]:
        """(kernel that was asked for or ``""``, device, answer) of each."""
        with _lock:
            return list(self._answers.values())
