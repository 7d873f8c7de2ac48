"""A comparison of what a host took with what golden says, used inside the simulator."""

from golden.kllm.isa import Unit


def compare(got, taken, results, readback) -> None:
    """Statuses in order on each unit, and every word read back.

    got: tb.kllm.support.host.Report; results: (tag, unit, status). An unknown opcode is reported as
    unit 0, among that unit's own commands: of unit 0 only the set counts.
    """
    for unit in range(len(Unit)):
        found = [(report.tag, report.status) for report in got if report.unit == unit]
        expected = [(tag, status) for tag, where, status in results if where == unit]
        if unit == 0:
            found.sort()
            expected.sort()
        assert found == expected, f"unit {unit}: {found} != {expected}"
    differ = [n for n, (a, b) in enumerate(zip(taken, readback, strict=True)) if a != b]
    assert not differ, f"{len(differ)} of {len(readback)} words differ, the first is {differ[0]}"
