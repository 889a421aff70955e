"""Convert HLO text on stdin to StableHLO bytecode on stdout. Run as a program: XLA aborts on some broken texts."""

import sys


def main() -> None:
    """Read, convert and write.

    Raises:
      Exception: any error of jaxlib about a text that it cannot read.
    """
    # Not through jax, whose import takes seconds. Both are in jaxlib 0.11 and 0.12.
    from jaxlib import _hlo, _jax  # type: ignore[attr-defined]

    module = _hlo.hlo_module_from_text(sys.stdin.buffer.read().decode("utf-8", errors="replace"))
    sys.stdout.buffer.write(_jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto()))


if __name__ == "__main__":
    main()
