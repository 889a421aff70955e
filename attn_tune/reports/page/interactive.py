"""The library of ``--interactive``: Vega, Vega-Lite and Vega-Embed in one text, from the extra ``report``.

The extra puts the text together, which takes longer than all else of a page. So that is done in a process beside this
one, and the text is kept in the user's cache folder.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attn_tune.packs.plain_files import read_limited, write_whole
from attn_tune.reports.page.markup import script_text
from attn_tune.schema.directories import cache_directory
from attn_tune.schema.errors import AttnTuneError, UsageError

_SNIPPET = "window.vegaEmbed = vegaEmbed;"
_PROGRAM = f"import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle({_SNIPPET!r}))"


@contextlib.contextmanager
def begin_library(environ: Mapping[str, str]) -> Iterator[Callable[[], str]]:
    """Begin to make the library; what it yields waits for its text, as it may stand in a script element.

    The text sets ``window.vegaEmbed`` and asks for nothing (BSD-3-Clause).

    Raises:
      UsageError: the package that carries it is not installed, or fails.
    """
    try:
        version = importlib.metadata.version("vl-convert-python")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            "--interactive needs vl-convert-python, which carries Vega-Lite: pip install 'attn-tune[report]', "
            "or leave --interactive out"
        ) from None
    folder = cache_directory(environ)
    kept = Path(folder, f"vega-{version}-{_digest(_SNIPPET)[:8]}.js") if folder else None
    if text := _read(kept):
        yield lambda: text
        return
    command = [sys.executable, "-P", "-c", _PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        try:
            yield functools.partial(_finish, process, kept)
        finally:
            process.kill()


def _finish(process: subprocess.Popen[bytes], kept: Path | None) -> str:
    out, err = process.communicate()
    if process.returncode or not out:
        last = err.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"--interactive: vl-convert-python makes no library: {last or 'it ended without a word'}")
    text = script_text(out.decode())
    if kept:
        # Without the file the next page takes longer, and nothing else.
        with contextlib.suppress(OSError, AttnTuneError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, f"// sha256 {_digest(text)}\n{text}".encode())
    return text


def _read(kept: Path | None) -> str:
    """The text in ``kept``; empty where it is missing, damaged or not of this module."""
    with contextlib.suppress(AttnTuneError, UnicodeDecodeError):
        head, _, text = read_limited(kept, str(kept)).decode().partition("\n") if kept else ("", "", "")
        if head == f"// sha256 {_digest(text)}":
            return text
    return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
