"""The table of parameters of a block's page.

Shown to fail: a nested configuration that is not a Shape ends the list, as it did; an integer
without a range.
"""

import dataclasses
import re

import pytest

from golden.config import Config
from hdl.pages.documents import _fields
from hdl.registry import all_blocks


def leaves(config, prefix=""):
    """Names of the fields that have no fields, at any depth."""
    for name in (field.name for field in dataclasses.fields(config)):
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"`{prefix}{name}`"


@pytest.mark.parametrize("name", all_blocks())
def test_every_field_has_a_row_with_its_meaning(name):
    config = all_blocks()[name].config
    rows = {field: meaning for field, _, _, meaning in _fields(config)}
    assert set(leaves(config)) <= set(rows)
    assert [field for field, meaning in rows.items() if not meaning] == []


# How a meaning says which integers a field takes.
_RANGE = re.compile(r"\.\.| or |, \d|divisor|power of two|multiple|at least|at most|up to|from 1")


@pytest.mark.parametrize("name", all_blocks())
def test_every_integer_has_a_range(name):
    fields = _fields(all_blocks()[name].config)
    integers = [each for each in fields if re.fullmatch(r"`-?\d+`", each[1])]
    assert [each for each in integers if not each[2] and not _RANGE.search(each[3])] == []


def test_fields_of_a_tuple_of_configurations():
    rows = {field: default for field, default, _, _ in _fields(all_blocks()["paging_mmu"].config)}
    assert rows["`cache.kv.per_head`"] == "`2 x RecordKind`"
    assert rows["`cache.kv.per_head[].least`"] == "`64`"
