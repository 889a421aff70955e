"""Device code that finds the chunks of a program, and the slots of shared memory in which they come."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.lang.gluon.chunks import CHUNK

_CHUNK = gl.constexpr(CHUNK)


class Walk(NamedTuple):
    """The chunks of a program.

    Attributes:
      sequence: -1 of tokens that no sequence has.
      begin, end: the first token of the sequence, and the end of its tokens.
      place: of its first chunk.
      first, last: the first chunk of the segment, and the end of its chunks.
      segment, head: which they are.
      tile: of columns of the state.
      of_values: the state starts from what the sequence does; else from the identity, and values count as zero.
    """

    sequence: gl.tensor
    begin: gl.tensor
    end: gl.tensor
    place: gl.tensor
    first: gl.tensor
    last: gl.tensor
    segment: gl.tensor
    head: gl.tensor
    tile: gl.tensor
    of_values: gl.tensor


@gluon.jit
def walk_of(cu_seqlens, TILES: gl.constexpr, SEGMENTS: gl.constexpr, static: gl.constexpr):
    """The walk of a program: programs of one head are neighbours, ``TILES`` of columns for each of ``SEGMENTS``.

    Tiles behind those of the values are of the identity's columns. With fewer segments than sequences have, tokens
    before the first sequence have no program.
    """
    tile = gl.program_id(0) % TILES
    head = gl.program_id(0) // TILES % static.heads
    segment = gl.program_id(0) // (TILES * static.heads) % SEGMENTS
    part = gl.program_id(0) // (TILES * static.heads * SEGMENTS)
    if static.ragged and static.segments > SEGMENTS:
        part += 1
    of_values = tile < static.tiles
    tile = gl.where(of_values, tile, tile - static.tiles)
    return walk_at(cu_seqlens, part, segment, head, tile, of_values, static)


@gluon.jit
def walk_at(cu_seqlens, part, segment, head, tile, of_values, static: gl.constexpr):
    """The chunks of a segment of a part: a sequence, or tokens of none."""
    if static.ragged:
        sequence = part - 1
        begin = gl.load(cu_seqlens + sequence, mask=part > 0, other=0)
        end = gl.load(cu_seqlens + part, mask=part <= static.batch, other=static.length)
        place = begin // _CHUNK + part
        sequence = gl.where(part <= static.batch, sequence, -1)
    else:
        sequence = part
        begin = part * static.length
        end = begin + static.length
        place = part * ((static.length + _CHUNK - 1) // _CHUNK)
    chunks = (end - begin + _CHUNK - 1) // _CHUNK
    each = (chunks + static.segments - 1) // static.segments
    first = gl.minimum(segment * each, chunks)
    last = gl.minimum(segment * each + each, chunks)
    return Walk(sequence, begin, end, place, first, last, segment, head, tile, of_values)


@gluon.jit
def stage_of(step, plan: gl.constexpr):
    """The stage of a step of a walk, and the phase of its barriers."""
    step = step.to(gl.uint32)
    return (step % plan.stages).to(gl.int32), (step // plan.stages & 1).to(gl.int32)
