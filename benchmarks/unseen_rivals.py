"""The configs that ``unseen_shapes.py`` races for one problem and direction of ``flash_attention``, by their labels."""

import dataclasses
import functools
import random
from typing import Any

from cost_menu import KNOBS, MENU, TILE, width_of
from untuned_regret import Side

import attn_tune
from attn_tune.devices.identity import current_device
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.packs.reader import read_pack
from attn_tune.runtime.active.sources import SHIPPED
from attn_tune.runtime.lookup.question import Question
from attn_tune.schema.config import config_from_dict, config_to_dict


def auto(signature: str, direction: str) -> Side:
    """The kernel and config of a call of this signature here, with the packs that are active.

    Raises:
      LookupError: nothing can do the problem.
    """
    answer = attn_tune.explain("flash_attention", signature, direction).answer
    if answer is None:
        raise LookupError(f"nothing can do {direction} of {signature} here")
    return Side(answer.kernel, answer.config)


def swept_rivals(database: Any, signature: str, direction: str) -> dict[str, Side]:
    """Auto's choice, and the winner of the sweep.

    Raises:
      LookupError: one of the two is missing.
    """
    op = get_op("flash_attention")
    decision = database.decision(op.parse_signature(signature), direction, current_device())
    if decision is None:
        raise LookupError(f"the sweep has no winner for {direction} of {signature}")
    kernel = decision.kernel.rpartition("/")[2]
    return {"auto": auto(signature, direction), "swept": Side(kernel, decision.config)}


def untuned_rivals(signature: str, direction: str) -> dict[str, Side]:
    """Auto's choice, and the untuned config of every kernel for GPUs that can do the problem."""
    question = Question(get_op("flash_attention"), direction, signature, current_device(), None)
    found = {"auto": auto(signature, direction)}
    for spec in question.specs:
        if spec.backend != "xla" and question.refusal_of(spec) is None:
            config = spec.searches[direction].heuristic(question.problem, question.device)
            found[spec.name] = Side(spec.name, config_to_dict(config))
    return found


def config_rivals(signature: str, direction: str, drawn: int) -> dict[str, Side]:
    """The sides of ``untuned_rivals``, and ``drawn`` more configs of each kernel and part, and of the pack."""
    op = get_op("flash_attention")
    question = Question(op, direction, signature, current_device(), None)
    problem, device = question.problem, question.device
    found = untuned_rivals(signature, direction)
    chance = random.Random(f"{signature} {direction}")
    for untuned in list(found.values())[1:]:
        spec = get_kernel(f"flash_attention/{untuned.kernel}")
        if spec.needs_leave(direction):
            # Auto takes it only where a pack says so.
            continue
        search = spec.searches[direction]
        base = config_from_dict(search.config, untuned.config)
        known = [
            search.adapt(
                op.from_signature(op.parse_signature(row.signature)),
                problem,
                device,
                config_from_dict(search.config, row.config),
            )
            for row in _shipped_rows()
            if (row.kernel, row.direction) == (untuned.kernel, direction)
        ]
        known = list(dict.fromkeys(config for config in known if config))
        configs = chance.sample(known, min(drawn, len(known)))
        for part, candidates in search.candidates.items():
            every = list(candidates(problem, device))
            for config in chance.sample(every, min(drawn, len(every))):
                configs.append(search.whole(base, part, config))
        fitting = [c for c in configs if search.infeasible(problem, device, c) is None]
        for config in dict.fromkeys([base, *fitting]):
            side = Side(untuned.kernel, config_to_dict(config))
            if side not in found.values():
                found[f"{untuned.kernel} {len(found)}"] = side
    return found


def menu_rivals(signature: str, direction: str) -> dict[str, Side]:
    """The sides of ``untuned_rivals``, and the configs of each Triton kernel that ``fit_costs.py`` fits figures to."""
    question = Question(get_op("flash_attention"), direction, signature, current_device(), None)
    problem, device = question.problem, question.device
    width = width_of(problem)
    found = {
        label: side
        for label, side in untuned_rivals(signature, direction).items()
        if side.kernel in ("cudnn", "triton", "triton_hopper", "triton_split")
    }
    for kernel, untuned in list(found.items())[1:]:
        if kernel == "cudnn":
            continue
        search = get_kernel(f"flash_attention/{kernel}").searches[direction]
        base = config_from_dict(search.config, untuned.config)
        configs = []
        for part in search.parts:
            for knobs in MENU[f"{kernel}/{part or 'fwd'}"][width]:
                names = KNOBS.get(kernel, TILE)
                values = dict(zip(names, knobs, strict=False))
                if "max_registers" in names:
                    values.setdefault("max_registers", None)
                values |= {"ping_pong": bool(knobs[2])} if kernel == "triton_hopper" else {}
                tile = getattr(base, part) if part else base
                values = {name: value for name, value in values.items() if hasattr(tile, name)}
                tile = dataclasses.replace(tile, **values)
                configs.append(search.whole(base, part, tile) if part else tile)
        # Splits and sections of half and twice the number, of the untuned tile.
        near = {"triton_split": "num_splits", "triton_hopper": "heads_per_section"}.get(kernel)
        if near:
            configs += [
                config
                for config in search.candidates[""](problem, device)
                if dataclasses.replace(config, **{near: getattr(base, near)}) == base
            ]
        for config in dict.fromkeys(configs):
            side = Side(kernel, config_to_dict(config))
            if search.infeasible(problem, device, config) is None and side not in found.values():
                found[f"{kernel} {len(found)}"] = side
    return found


def all_rivals(signature: str, direction: str, drawn: int) -> dict[str, Side]:
    """The sides of ``menu_rivals`` and of ``config_rivals``."""
    found = menu_rivals(signature, direction)
    for side in config_rivals(signature, direction, drawn).values():
        if side not in found.values():
            found[f"{side.kernel} {len(found)}"] = side
    return found


@functools.cache
def _shipped_rows() -> tuple[Any, ...]:
    return read_pack(SHIPPED / "nvidia-h200").rows
