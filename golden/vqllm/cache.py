"""The places of a codebook's entries, and the cycles and counters of their look-ups.

| entry | tier |
|---|---|
| index < registers | registers: any number at once |
| up to shared | SRAM, one read per bank: entry j of stage z in bank (j + z) % banks |
| index >= shared | memory: one read per cycle |
"""

import dataclasses

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.index.format import CodebookFault

_ONE = 0x3C00  # the largest magnitude of an entry


@dataclasses.dataclass(frozen=True)
class Tiers:
    """The tiers that a load says of its codebooks; banks: of the SRAM."""

    registers: int
    shared: int
    banks: int


@dataclasses.dataclass(frozen=True)
class LookUps:
    """Beats of codes: code and use are (beats, lanes), and lane l looks up stage l % stages."""

    code: Tensor
    use: Tensor
    stages: int

    @property
    def stage(self) -> Tensor:
        return torch.arange(self.code.shape[1]) % self.stages

    def tier(self, tiers: Tiers) -> Tensor:
        """(beats, lanes): 0 registers, 1 SRAM, 2 memory, -1 not looked up."""
        tier = (self.code >= tiers.registers).long() + (self.code >= tiers.shared)
        return torch.where(self.use, tier, -1)

    def fullest_bank(self, tiers: Tiers) -> Tensor:
        """(beats,): the most reads of one bank."""
        bank = (self.code + self.stage) % tiers.banks
        reads = torch.nn.functional.one_hot(bank, tiers.banks)
        return (reads * (self.tier(tiers) == 1)[..., None]).sum(1).amax(-1)

    def cycles(self, tiers: Tiers) -> Tensor:
        """(beats,): reads of the fullest bank or of memory, at least 1."""
        memory = (self.tier(tiers) == 2).sum(1)
        return torch.maximum(self.fullest_bank(tiers), memory).clamp(min=1)

    def counts(self, tiers: Tiers) -> dict[str, int]:
        """Look-ups of each tier; conflicts: cycles that a beat takes since reads share a bank."""
        tier = self.tier(tiers)
        return {
            "registers": int((tier == 0).sum()),
            "shared": int((tier == 1).sum()),
            "memory": int((tier == 2).sum()),
            "conflicts": int((self.fullest_bank(tiers) - 1).clamp(min=0).sum()),
        }


def large_or_nonfinite(words: Tensor) -> tuple[Tensor, Tensor]:
    """(finite and above 1 in magnitude, NaN or infinite) of FP16 words."""
    magnitude = words & 0x7FFF
    return (magnitude > _ONE) & (magnitude < FP16.infinity), magnitude >= FP16.infinity


def load_fault(words: Tensor, expected: int) -> CodebookFault:
    """Judges the entries that were loaded, (entries, size); ``expected`` by what the load says.

    Of those that are too many nothing but their number counts.
    """
    large, nonfinite = (bool(found.any()) for found in large_or_nonfinite(words[:expected]))
    fault = CodebookFault(0)
    if nonfinite:
        fault |= CodebookFault.NONFINITE
    if large:
        fault |= CodebookFault.MAGNITUDE
    if len(words) != expected:
        fault |= CodebookFault.SHAPE
    return fault
