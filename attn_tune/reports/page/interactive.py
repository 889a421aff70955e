"""The library of ``--interactive``: Vega, Vega-Lite and Vega-Embed in one text, from the extra ``report``."""

from attn_tune.reports.page.markup import script_text
from attn_tune.schema.errors import UsageError


def library() -> str:
    """The text of the bundle, which sets ``window.vegaEmbed`` and asks for nothing (BSD-3-Clause).

    Raises:
      UsageError: the package that carries it is not installed.
    """
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise UsageError(
            "--interactive needs vl-convert-python, which carries Vega-Lite: pip install 'attn-tune[report]', "
            "or leave --interactive out"
        ) from None
    return script_text(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
