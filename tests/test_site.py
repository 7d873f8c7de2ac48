"""The site: every page has a place, every link leads somewhere, every diagram is drawn.

MkDocs in strict mode does the check, on a copy of the pages. ``FAULTS`` shows what fails. With
MkDocs's option ``-q`` nothing failed: strict mode counts the warnings that are printed.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("mkdocs")


def _module(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


flowchart = _module("flowchart")
checked_bit = _module("checked_bit")
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.S | re.M)
# Kinds of diagrams that the site shows as text.
OTHERS = {"sequenceDiagram"}


def build(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-d", str(tree / "site")],
        cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The sources that the site is made of, in a place of their own."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("golden", "hdl", "senbazuru", "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_the_site_builds_in_strict_mode(tree):
    status, output = build(tree)
    assert status == 0, output
    site = tree / "site"
    pages = {path.relative_to(tree / "docs").with_suffix("") for path in tree.glob("docs/**/*.md")}
    missing = [page for page in pages if not (site / f"{page}.html").exists()]
    assert not missing
    home = (site / "index.html").read_text()
    assert 'href="tutorials/index.html"' in home
    assert 'href="blocks/index.html"' in home
    lane = (site / "blocks" / "kllm_pe_lane.html").read_text()
    assert 'src="diagrams/kllm_pe_lane.svg"' in lane
    drawn = {path.stem for path in (site / "blocks" / "diagrams").glob("*.svg")}
    marked = {path.stem for path in (tree / "docs" / "blocks").glob("*.md")
              if "<!-- generated: diagram -->" in path.read_text()}  # fmt: skip
    assert drawn == marked
    assert len(drawn) > 30
    ET.parse(site / "blocks" / "diagrams" / "kllm_pe_lane.svg")
    for path in site.rglob("*.html"):
        assert "```" not in path.read_text(), f"{path}: a fence that is not read"
    nav = re.search(r"<nav class=\"md-nav md-nav--primary.*?</nav>", home, re.S)[0]
    assert "None" not in nav
    text = "".join(path.read_text() for path in site.glob("*.html"))
    assert not re.search(r'(?:src|href)="(?:https?:)?//[^"]*\.(?:js|css|woff2?)"', text)


FAULTS = {  # page -> what is added to it, and what the line about it says
    "docs/orphan.md": ("# A page\n", "orphan.md"),
    "docs/blocks/fp16_orphan.md": ("# A block\n", "blocks/fp16_orphan.md"),
    "docs/walk.md": ("\n[a](missing.md)\n", "missing.md"),
    "docs/numerics.md": ("\n[a](kllm.md#no-such-heading)\n", "kllm.md#no-such-heading"),
    "README.md": ("\n[a](docs/none.md)\n", "docs/none.md"),
}


def test_each_fault_of_the_pages_fails(tree):
    for page in (tree / "docs" / "blocks").glob("*.md"):  # no fault is in the pictures
        page.write_text(page.read_text().replace("<!-- generated: diagram -->\n", ""))
    before = {name: (tree / name).read_text() for name in FAULTS if (tree / name).exists()}
    for name, (text, _) in FAULTS.items():
        (tree / name).write_text(before.get(name, "") + text)
    status, output = build(tree)
    assert status != 0
    for name, (_, line) in FAULTS.items():
        assert line in output, name
    # The two orphans are one warning.
    assert f"Aborted with {len(FAULTS) - 1} warnings in strict mode" in output


def test_the_picture_of_the_readme_is_the_drawn_one():
    """Seen to fail with a text of the picture changed and no new file."""
    assert checked_bit.PICTURE.read_text() == checked_bit.picture()
    assert "](docs/images/checked-bit.svg)" in (ROOT / "README.md").read_text()
    root = ET.fromstring(checked_bit.picture())
    assert root[2].get("fill") == "#fff"  # a ground for readers with dark colours
    assert int(root.get("width")) <= 600  # scaled to a phone, the letters remain 10 pixels high


# -- diagrams -----------------------------------------------------------------------------------
def charts():
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for n, source in enumerate(MERMAID.findall(page.read_text())):
            name = f"{page.relative_to(ROOT / 'docs')}-{n}"
            yield pytest.param(source, id=name)


@pytest.mark.parametrize("source", list(charts()))
def test_every_diagram_of_the_pages_is_drawn(source):
    made = flowchart.svg(source, "A chart")
    if made is None:
        assert source.split()[0] in OTHERS
        return
    ET.fromstring(made)


def lines(source: str) -> tuple[dict, list]:
    chart = flowchart._Chart()
    assert all(chart.add(line) for line in source.strip().splitlines())
    return chart.nodes, chart.lines


def test_what_a_chart_says():
    nodes, arcs = lines('a["one: x"] --> b[(two)] & c{three}\nb -->|label| d\na -- words --> d')
    assert nodes == {"a": "one: x", "b": "two", "c": "three", "d": "d"}
    assert arcs == [
        ("a", "b", "a", ""),
        ("a", "c", "a", ""),
        ("b", "d", "a", "label"),
        ("a", "d", "a", "words"),
    ]
    assert lines("a <--> b --- c -.-> d")[1] == [
        ("a", "b", "d", ""),
        ("b", "c", "p", ""),
        ("c", "d", "s", ""),
    ]
    assert lines("[*] --> idle\nidle --> busy: a command")[1] == [
        ("[*]", "idle", "a", ""),
        ("idle", "busy", "a", "a command"),
    ]


@pytest.mark.parametrize("source", ["pie\n a: 1", "flowchart LR\n a ~~~~> b", "flowchart LR\n"])
def test_what_is_not_known_stays_text(source):
    assert flowchart.svg(source, "A chart") is None
