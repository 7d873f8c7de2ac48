"""``python docs/_site/checked_bit.py`` draws README's picture, docs/images/checked-bit.svg.

The picture is narrow, and its letters are large, so that a phone shows it whole. It has a ground of
its own, because the repository's host shows it on white and on black. The bytes depend on this file
alone.
"""

from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "images" / "checked-bit.svg"
TITLE = (
    "A real model becomes words; golden and the Verilog compute with them; all bits are compared"
)
_WIDTH, _HEIGHT = 560, 344
_FONT = (
    'text-anchor="middle" '
    "font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif\""
)
_INK, _SOFT, _LINE = "#1f2933", "#3e4c59", "#334e68"
# Fill and stroke of each kind of box: data, specification, hardware, check.
_DATA, _GOLDEN = ("#fdebd0", "#a05a00"), ("#e3eefb", "#1f5f99")
_HARDWARE, _CHECK = ("#d9f2e6", "#27704a"), ("#f7dfe6", "#99264f")
# Left, top, width, colours, heading and texts of each box.
_BOXES = (
    (12, 12, 252, _DATA, "A real model", ("weights of a checkpoint,", "tokens of real text")),
    (296, 12, 252, _GOLDEN, "Words", ("golden quantizes: codes,", "codebooks, programs")),
    (12, 140, 252, _GOLDEN, "Golden model", ("PyTorch states each bit", "and each rounding")),
    (296, 140, 252, _HARDWARE, "Verilog", ("Amaranth generates it,", "Verilator runs it")),
    (12, 268, 536, _CHECK, "Equal in all bits?", ("one bit off, and the run fails",)),
)  # fmt: skip
_TALL = 92  # height of a box with two texts
_ARROWS = ("M264 58H292", "M422 104V136", "M350 104L210 137", "M138 232V264", "M422 232V264")


def _text(x: float, y: float, size: int, colour: str, each: str, more: str = "") -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"'
    return f"<text {place}{more}>{escape(each)}</text>"


def picture() -> str:
    """The function draws boxes and arrows as SVG."""
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    view = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    head = f'<path d="M0 1L8 4L0 7z" fill="{_LINE}"/>'
    marker = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} {view} {_FONT}>',
        f"<title>{escape(TITLE)}</title>",
        f'<defs><marker id="h" {marker}>{head}</marker></defs>',
        f'<rect {size} rx="8" fill="#fff"/>',
    ]
    for left, top, width, (fill, stroke), heading, texts in _BOXES:
        tall = _TALL - 24 * (2 - len(texts))
        lines.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{tall}" rx="8" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'
        )
        middle = left + width / 2
        lines.append(_text(middle, top + 30, 22, _INK, heading, ' font-weight="bold"'))
        lines += [_text(middle, top + 55 + 23 * n, 18, _SOFT, each) for n, each in enumerate(texts)]
    lines += [
        f'<path d="{path}" fill="none" stroke="{_LINE}" stroke-width="2" marker-end="url(#h)"/>'
        for path in _ARROWS
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture())
