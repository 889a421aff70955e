"""Names the axes of the products of an attention by the letters ``B T S N K H V``.

Products know batch axes and free ones, not which of them are heads. The order of the keys' axes says it: of several
batch axes the last are key/value heads; where the length stands before them (``BSKH``), the queries' length stands
before their group too, else after it.
"""

import math
from dataclasses import dataclass

from attn_tune.ops.flash_attention.recognise.axes import Cone, root
from attn_tune.ops.program_graph import Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of one attention on one device.

    Attributes:
      batch: the number of sequences.
      q_len: the length of the queries.
      kv_len: the length of the keys.
      num_q_heads: query heads.
      num_kv_heads: key/value heads.
      head_dim: of queries and keys.
      v_head_dim: of values.
      dtype: of the queries.
      letters: the names of the atoms of its first product.
      remark: a sentence where the program does not tell two letters apart.
    """

    batch: int
    q_len: int
    kv_len: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    letters: tuple[str, ...]
    remark: str = ""

    def alike(self, other: "Sizes") -> bool:
        """Whether these may be forward and backward of one attention.

        A value that comes out of a loop may have its axes in another order: only products of sizes are compared.
        """
        return self._outline() == other._outline()

    def _outline(self) -> tuple[int, ...]:
        rows = self.batch * self.num_q_heads * self.q_len
        return rows, self.kv_len, self.head_dim, self.v_head_dim


def read_sizes(
    cone: Cone,
    summed: frozenset[int],
    value: Value | None,
    end: tuple[Value, int] | None,
    *,
    gradient: tuple[Value, int] | None = None,
) -> Sizes | None:
    """Reads the sizes of the attention whose logits are ``cone.product``.

    ``summed`` are the atoms of the softmax's axis. With ``gradient``, the product that makes the gradient of the
    queries, ``cone.product`` is the gradient of the weights.

    None if that axis is not on one side of the product.
    """
    product = cone.product
    contract, batch = product.attributes["contract"], product.attributes["batch"]
    count = len(batch[0])
    free = [
        [a for a in range(len(side.shape)) if a not in contract[i] and a not in batch[i]]
        for i, side in enumerate(product.inputs)
    ]
    atoms = [
        list(range(count, count + len(free[0]))),
        list(range(count + len(free[0]), count + len(free[0]) + len(free[1]))),
    ]
    sides = [i for i in (0, 1) if summed and summed <= set(atoms[i])]
    if not sides:
        return None
    at_key = sides[0]
    at_query = 1 - at_key
    query, key = product.inputs[at_query], product.inputs[at_key]
    # Batch atoms in the order in which the keys have them.
    ordered = sorted(range(count), key=lambda i: batch[at_key][i])
    letters = [""] * len(product.shape)
    for atom in atoms[at_key]:
        letters[atom] = "s"
    length_axis = free[at_key][atoms[at_key].index(min(summed))]
    remark = _name_query(letters, ordered, atoms[at_query], cone, batch[at_key], length_axis)

    def size(letter: str) -> int:
        total = 1
        for atom, name in enumerate(letters):
            if name == letter:
                total *= _local_size(product, atom, batch, free)
        return total

    heads, group = size("k"), size("g")
    contracted = math.prod(_local(query, axis) for axis in contract[at_query])
    head_dim = v_head_dim = contracted
    if value is not None and end is not None:
        v_head_dim = _free_size(end[0], 1 - end[1])
    if gradient is not None:
        # The weights' gradient sums over the values' head dim; the keys' is what the next product leaves.
        head_dim = _free_size(gradient[0], 1 - gradient[1])
    kv_heads = _before_repeat(key, heads, size("b"), size("s"), contracted) if group == 1 else heads
    return Sizes(
        batch=size("b"),
        q_len=size("t"),
        kv_len=size("s"),
        num_q_heads=heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype=query.dtype,
        letters=tuple(letters),
        remark=remark,
    )


def _name_query(
    letters: list[str],
    ordered: list[int],
    free: list[int],
    cone: Cone,
    key_axes: tuple[int, ...],
    length_axis: int,
) -> str:
    """Names the batch atoms and the queries' own; returns a sentence about a guess."""
    remark = ""
    if len(free) == 1 or not free:
        letters_of = dict.fromkeys(free, "t")
        heads = ordered[-1:]
        if len(ordered) == 1:
            remark = "its one batch axis is taken as heads"
    else:
        # One batch axis beside several of the queries is the batch: the group is all the heads there are.
        heads = ordered[-1:] if len(ordered) > 1 else []
        lengths_last = bool(heads) and all(length_axis > key_axes[i] for i in ordered)
        at = free[-1] if lengths_last else free[0]
        if not heads:
            kv_len = math.prod(cone.sizes[a] for a, name in enumerate(letters) if name == "s")
            same = [a for a in free if cone.sizes[a] == kv_len]
            at = same[0] if len(same) == 1 else at
        letters_of = {a: "t" if a == at else "g" for a in free}
    for atom in ordered:
        letters[atom] = "k" if atom in heads else "b"
    for atom, name in letters_of.items():
        letters[atom] = name
    return remark


def _local(value: Value, axis: int) -> int:
    parts = value.parts[axis] if value.parts else 1
    return value.shape[axis] // parts


def _local_size(
    product: Value,
    atom: int,
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    free: list[list[int]],
) -> int:
    """The size of an axis of the product on one device, from the operand that it comes from."""
    left, right = product.inputs
    count = len(batch[0])
    if atom < count:
        return min(_local(left, batch[0][atom]), _local(right, batch[1][atom]))
    if atom < count + len(free[0]):
        return _local(left, free[0][atom - count])
    return _local(right, free[1][atom - count - len(free[0])])


def _free_size(product: Value, place: int) -> int:
    """The size of the free axes of one operand."""
    taken = {*product.attributes["contract"][place], *product.attributes["batch"][place]}
    operand = product.inputs[place]
    return math.prod(_local(operand, a) for a in range(len(operand.shape)) if a not in taken)


def _before_repeat(key: Value, heads: int, batch: int, kv_len: int, head_dim: int) -> int:
    """Key/value heads before they were repeated for the queries' groups, where the program shows it."""
    origin = root(key)
    rest = batch * kv_len * head_dim
    if origin is key or origin.parts or origin.size >= key.size or origin.size % rest:
        return heads
    before = origin.size // rest
    shows_batch = batch == 1 or batch in origin.shape
    return before if shows_batch and before and heads % before == 0 else heads
