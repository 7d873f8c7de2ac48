"""The commands of a pass over its cycles, as SVG: a lane per unit.

The same data gives the same bytes.
"""

from collections.abc import Iterable, Sequence
from html import escape

from golden.kllm.isa import Unit
from senbazuru.talk.report import Placed
from sim.svg import COLOURS, amount, ticks

_LEFT, _RIGHT, _TOP, _LANE, _GAP, _WIDTH = 90, 20, 60, 34, 8, 1400


def timeline_svg(placed: Sequence[Placed], cycles: int, title: str) -> str:
    """cycles: of the pass."""
    total = max(cycles, 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / total
    units = [unit.name for unit in Unit]
    bottom = _TOP + len(units) * (_LANE + _GAP)
    opcodes = sorted({each.opcode for each in placed})
    colour = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(opcodes)}
    height = bottom + 76
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for n, unit in enumerate(units):
        y = _TOP + n * (_LANE + _GAP)
        share = sum(end - begin for begin, end in _busy(placed, unit)) / total
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{unit}</text>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 29}" text-anchor="end">{share:.0%}</text>')
        for each in placed:
            if each.unit == unit:
                width = max((each.end - each.begin) * scale, 0.2)
                lines.append(
                    f'<rect x="{_LEFT + each.begin * scale:.2f}" y="{y}" width="{width:.2f}" '
                    f'height="{_LANE}" fill="{colour[each.opcode]}"/>'
                )
    for value in ticks(0, total):
        if value <= total:
            x = _LEFT + value * scale
            lines.append(f'<path d="M{x:.1f} {bottom}v5" stroke="#000000"/>')
            lines.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{amount(value)}</text>'
            )
    lines.append(f'<text x="{_WIDTH - _RIGHT}" y="{bottom + 34}" text-anchor="end">cycles</text>')
    step = (_WIDTH - _LEFT) / max(len(opcodes), 1)
    for n, name in enumerate(opcodes):
        x = _LEFT + n * step
        lines.append(
            f'<rect x="{x:.1f}" y="{bottom + 48}" width="12" height="12" fill="{colour[name]}"/>'
        )
        short = escape(name.replace("_", " ").lower())
        lines.append(f'<text x="{x + 16:.1f}" y="{bottom + 58}" font-size="8">{short}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _busy(placed: Iterable[Placed], unit: str) -> list[tuple[int, int]]:
    """Spans in which a unit is at work, without overlaps."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted((each.begin, each.end) for each in placed if each.unit == unit):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found
