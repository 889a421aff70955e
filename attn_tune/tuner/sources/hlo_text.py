"""The text of an HLO module, taken apart: computations, and instructions with their operands and attributes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[^\s(=]+)(?: \(.*)? ?\{$")
_NAME = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[^\s=]+) = ")
_ARRAY = re.compile(r"^(?P<dtype>[a-z0-9]+)\[(?P<dims>[^\]]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True, slots=True)
class Type:
    """An array; a tuple has ``parts`` instead."""

    dtype: str = "opaque"
    shape: tuple[int, ...] = ()
    parts: tuple["Type", ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One line. ``operands`` are names, with ``#i`` for one element of a tuple; a constant's is its literal."""

    name: str
    opcode: str
    type: Type
    operands: tuple[str, ...]
    rest: str

    def numbers(self, key: str) -> tuple[int, ...]:
        """``key={0,1}`` as numbers; none where it is not given."""
        match = re.search(rf"\b{key}=\{{([\d,]*)\}}", self.rest)
        return tuple(int(n) for n in match[1].split(",") if n) if match else ()

    def word(self, key: str) -> str:
        """``key=word``, ``key=%name`` or ``key="text"``; empty where it is not given."""
        match = re.search(rf'\b{key}=(?:"((?:[^"\\]|\\.)*)"|%?([^\s,}}]+))', self.rest)
        return (match[1] if match[1] is not None else match[2]) if match else ""


@dataclass(slots=True)
class Computation:
    """The instructions of one computation in their order; ``root`` names the last in meaning."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    root: str = ""

    def instruction(self, name: str) -> Instruction | None:
        """The instruction called ``name``."""
        return next((i for i in self.instructions if i.name == name), None)


@dataclass(slots=True)
class Module:
    """A module's header line, its computations by name and the entry's name."""

    header: str
    computations: dict[str, Computation]
    entry: str


def parse_module(text: str) -> Module | None:
    """Takes a module apart; None if the text is none."""
    header, computations, entry = "", {}, ""
    current: Computation | None = None
    for line in text.splitlines():
        line = _COMMENT.sub("", line.rstrip())
        if line.startswith("HloModule"):
            header = line
        elif current is None and line.endswith("{") and (match := _HEAD.match(line)):
            current = Computation(match["name"])
            computations[current.name] = current
            entry = current.name if match["entry"] else entry
        elif line.strip() == "}":
            current = None
        elif current is not None and (match := _NAME.match(line)):
            instruction = _instruction(match["name"], line[match.end() :])
            if instruction is not None:
                current.instructions.append(instruction)
                current.root = match["name"] if match["root"] else current.root
    return Module(header, computations, entry) if header and entry else None


def _instruction(name: str, text: str) -> Instruction | None:
    type_text, rest = _until_space(text)
    opcode, paren, rest = rest.partition("(")
    if not paren:
        return None
    end = _closing(rest)
    inside, rest = rest[:end], rest[end + 1 :]
    if opcode.strip() in ("constant", "parameter"):
        operands = (inside,)
    else:
        operands = tuple(part.split()[-1].lstrip("%") for part in _split(inside) if part.strip())
    return Instruction(
        name=name, opcode=opcode.strip(), type=_type(type_text), operands=operands, rest=rest
    )


def _until_space(text: str) -> tuple[str, str]:
    """A type, which may be a tuple with spaces in it, and what follows."""
    if text.startswith("("):
        end = _closing(text[1:]) + 2
        return text[:end], text[end:].lstrip()
    first, _, rest = text.partition(" ")
    return first, rest


def _closing(text: str) -> int:
    """The place of the bracket that closes what was opened before ``text``."""
    depth = 0
    for i, letter in enumerate(text):
        if letter in "({[":
            depth += 1
        elif letter in ")}]":
            if depth == 0:
                return i
            depth -= 1
    return len(text)


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand outside brackets."""
    depth, start = 0, 0
    for i, letter in enumerate(text):
        if letter in "({[":
            depth += 1
        elif letter in ")}]":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _type(text: str) -> Type:
    if text.startswith("("):
        return Type(parts=tuple(_type(part.strip()) for part in _split(text[1:-1]) if part.strip()))
    match = _ARRAY.match(text)
    if match is None:
        return Type()
    dims = tuple(int(d.lstrip("<=")) for d in match["dims"].split(",") if d.strip())
    return Type(match["dtype"], dims)
