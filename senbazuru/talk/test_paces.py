"""The table of limits and hosts: rows from sizes alone, and what the command refuses."""

import pytest

from senbazuru.talk.paces import main


def test_a_row_of_a_context(capsys):
    """Each host's ratio is its cycles over the words; a slower host uses less of the lanes."""
    assert main(["--contexts", "42"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    words = int(row[1].replace(",", ""))
    cycles = [int(row[place].replace(",", "")) for place in (3, 7, 11)]
    assert cycles == sorted(cycles)
    assert [row[place] for place in (4, 8, 12)] == [f"{each / words:.2f}" for each in cycles]
    assert [row[place] for place in (6, 10, 14)] == [f"{500e6 / each:,.0f}" for each in cycles]


@pytest.mark.parametrize(
    "words", [["--contexts", "512"], ["--model", "elsewhere"], ["--set", "lane.lanes=0"]]
)
def test_bad_input_is_one_line(words, capsys):
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert capsys.readouterr().err.count("\n") == 1
