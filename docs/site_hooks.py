"""Hooks of MkDocs: pages of the repository's root join the site, and links that leave the site become plain text."""

import re
from pathlib import Path

from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Page of the site: file of the repository.
PAGES = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Adds the pages of the repository's root."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text, ROOT, DOCS)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites the links of a page."""
    if page.file.src_uri in PAGES:
        return markdown
    folder = (DOCS / page.file.src_uri).parent
    return _relinked(markdown, folder, folder)


def _relinked(text: str, folder: Path, home: Path) -> str:
    """``text`` of a page in ``folder``, which the site has in ``home``, with links to pages as the site has them."""
    homes = {ROOT / source: DOCS / page for page, source in PAGES.items()}

    def relink(match: re.Match[str]) -> str:
        mark, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in target:
            return match[0]
        path = (folder / target).resolve()
        path = homes.get(path, path)
        if path.is_relative_to(DOCS):
            return f"{mark}[{words}]({path.relative_to(home, walk_up=True).as_posix()}{anchor})"
        # A file of the repository that is no page of the site.
        inside = path.relative_to(ROOT).as_posix()
        return words if inside in words else f"{words} (`{inside}`)"

    return _LINK.sub(relink, text)
