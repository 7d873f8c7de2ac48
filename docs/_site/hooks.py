"""MkDocs runs these hooks to show docs/ as a site: first page, links to sources, diagrams, the nav.

The pages are written for the repository's host. README.md becomes the first page. A file outside
docs/ that a page links to becomes a file of the site. Mermaid's diagrams become SVG. The pages of
blocks get the pictures of their parts. They and the decisions get their places in the nav from the
generated indexes.
"""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent))  # of the module below
from flowchart import svg

from hdl.pages.documents import DIAGRAM, picture, shows_diagram

ROOT = Path(__file__).resolve().parents[2]
# Files of the root that are pages too, and their names in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
SOURCES = "source"  # folder of the site for other files of the repository
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.S | re.M)
_CODE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)$|`[^`\n]*`", re.S | re.M)


def _target(link: str, folder: str) -> str | None:
    """The file of the repository that a link of a page in ``folder`` names; None: none."""
    if "://" in link or link.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join(folder, link))
    return path if (ROOT / path).is_file() else None


def _place(path: str) -> str:
    """Returns the place in the site of the file ``path`` of the repository."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{SOURCES}/{path}.txt"


def _linked(markdown: str, source: str) -> tuple[str, set[str]]:
    """The page ``source`` with the site's links, and the files outside docs/ that it needs."""
    found: set[str] = set()
    own = posixpath.dirname(_place(source))

    def change(match: re.Match[str]) -> str:
        target = _target(match[1], posixpath.dirname(source))
        if target is None:
            return match[1]  # MkDocs checks it
        if not target.startswith("docs/") and target not in PAGES:
            found.add(target)
        return posixpath.relpath(_place(target), own or ".")

    codes: list[str] = []

    def keep(match: re.Match[str]) -> str:
        codes.append(match[0])
        return f"\0{len(codes) - 1}\0"

    text = _LINK.sub(change, _CODE.sub(keep, markdown))
    return re.sub(r"\0(\d+)\0", lambda match: codes[int(match[1])], text), found


def _expanded(page: str) -> list:
    """Nav entries of the pages that the index ``page`` lists, in sections of its headings."""
    folder, text = posixpath.dirname(page), (ROOT / "docs" / page).read_text()
    entries: list = [page]
    for section in re.split(r"^## ", text, flags=re.M):
        links = re.findall(r"^\| \[([^\]]*)\]\(([^)]+\.md)\) \| ([^|]*)", section, re.M)
        places = [
            {f"{name} {about.strip()}" if name.isdigit() else name: f"{folder}/{file}"}
            for name, file, about in links
        ]
        title = section.partition("\n")[0].strip()
        if links and title and section is not text:
            entries.append({title: places})
        else:
            entries += places
    return entries


def on_config(config: MkDocsConfig) -> None:
    """An entry ``{Title: index.md of a folder}`` of the nav becomes a section of that folder."""

    def filled(entries: list) -> list:
        made = []
        for entry in entries:
            ((title, inner),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
            if title and isinstance(inner, str) and inner.endswith("/index.md"):
                made.append({title: _expanded(inner)})
            elif isinstance(inner, list):
                made.append({title: filled(inner)})
            else:
                made.append(entry)
        return made

    config.nav = filled(config.nav or [])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages of the root, files that pages link to, pictures of blocks, and the style sheet."""
    needed: set[str] = set()
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {name: (ROOT / name).read_text() for name in PAGES}
    for source, text in texts.items():
        needed |= _linked(text, source)[1]
    for name, place in PAGES.items():
        files.append(File.generated(config, place, content=_linked(texts[name], name)[0]))
    for name in sorted(needed):
        files.append(File.generated(config, _place(name), content=(ROOT / name).read_text()))
    for source, text in texts.items():
        if source.startswith("docs/blocks/") and shows_diagram(text):
            name = Path(source).stem
            files.append(File.generated(config, _picture(name), content=picture(name)))
    style = (ROOT / "docs" / "_site" / "site.css").read_text()
    files.append(File.generated(config, "assets/site.css", content=style))
    return files


def _picture(name: str) -> str:
    return f"blocks/diagrams/{name}.svg"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to those of the site, and diagrams to pictures."""
    if page.file.src_uri not in PAGES.values():
        markdown = _linked(markdown, f"docs/{page.file.src_uri}")[0]

    def drawn(match: re.Match[str]) -> str:
        made = svg(match[1], page.title or page.file.src_uri)
        if made is None:
            return match[0].replace("```mermaid", "```text")
        return f'<div class="chart">{made}</div>\n'

    name = Path(page.file.src_uri).stem
    image = f"{DIAGRAM}\n![Parts and streams of {name}](diagrams/{name}.svg)\n"
    return _MERMAID.sub(drawn, markdown).replace(f"{DIAGRAM}\n", f"{image}\n")
