"""Hooks of MkDocs: pages of the repository's root join the site, and links that leave the site become plain text."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# Page of the site: file of the repository.
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Adds the pages of the repository's root."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text, ROOT, files)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites the links of a page."""
    if page.file.src_uri in PAGES:
        return markdown
    return _relinked(markdown, ROOT / "docs", files)


def _relinked(text: str, folder: Path, files: Files) -> str:
    """``text`` of a page in ``folder``, with links to pages of the site as the site has them."""
    homes = {ROOT / source: page for page, source in PAGES.items()}

    def relink(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        path = (folder / target).resolve()
        if path in homes:
            return f"[{words}]({homes[path]}{anchor})"
        if path.is_relative_to(ROOT / "docs"):
            return f"[{words}]({path.relative_to(ROOT / 'docs').as_posix()}{anchor})"
        # A file of the repository that is no page of the site.
        inside = path.relative_to(ROOT).as_posix()
        return words if inside in words else f"{words} (`{inside}`)"

    return _LINK.sub(relink, text)
