"""tb.faults.exhaustive: what a bench proves that has sent every word.

Shown to fail:

- a word that is missing, taken for sent;
- faults of registers, and of the logic of ``ready``, taken for faults of results;
- the second operand of two left out.
"""

import numpy as np
import pytest

from golden.fp16.format import FloatFormat
from golden.fp16.vectors.beats import pack
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.convert import FpConvert, FpConvertConfig
from tb.faults import mutate
from tb.faults.exhaustive import sends_every_word
from tb.fp16.support.bank import Bank, BankConfig

FP6 = FloatFormat(exp_bits=3, frac_bits=2)


def faults(tmp_path, operator, config, name: str) -> tuple[Bank, list[mutate.Mutant]]:
    """A bank of one operator, and its faults."""
    block = Bank(BankConfig(operator=operator, members=(config,)))
    recording = mutate.Recording("test", block, "", {})
    _, found, _ = mutate.make_mutants(name, recording, 60, 1, tmp_path)
    return block, found


def every_word(config) -> dict[str, np.ndarray]:
    words = np.arange(1 << FP6.bits)
    return {"i0": pack(config.i_layout, dict.fromkeys(config.operands, words))}


def test_faults_of_results(tmp_path):
    config = FpConvertConfig(i=FP6, stages=2, tag_bits=3)
    block, mutants = faults(tmp_path, FpConvert, config, "fp16_to_fp32")
    vectors = every_word(config)
    missing = {"i0": vectors["i0"][:-1]}
    proved = []
    for k, mutant in enumerate(mutants):
        if sends_every_word(block, vectors, mutant.command, tmp_path, f"a{k}"):
            proved.append(mutant)
            assert not sends_every_word(block, missing, mutant.command, tmp_path, "b")
    assert proved
    others = [mutant for mutant in mutants if mutant not in proved]
    for kind in ("take_", "always"):
        assert any(kind in mutant.source for mutant in others)
        assert not any(kind in mutant.source for mutant in proved)


def test_faults_of_an_operator_of_two_operands(tmp_path):
    config = FpAddConfig(format=FP6)
    block, mutants = faults(tmp_path, FpAdd, config, "fp16_add")
    vectors = every_word(config)
    assert not any(
        sends_every_word(block, vectors, each.command, tmp_path, "a") for each in mutants[:20]
    )


@pytest.mark.parametrize(
    "command", ["mutate -cell \\\\other", "mutate -cell $flatten\\operator_0.$"]
)
def test_faults_elsewhere(tmp_path, command):
    config = FpConvertConfig(i=FP6)
    block = Bank(BankConfig(operator=FpConvert, members=(config,)))
    block._MustUse__silence = True
    assert not sends_every_word(block, every_word(config), command, tmp_path, "a")
