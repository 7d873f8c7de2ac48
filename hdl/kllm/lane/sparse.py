"""The sparse path of a lane: outliers and their weights."""

from typing import ClassVar

from amaranth import Array, Module
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kllm.lane.config import SERIAL, SMALL, KllmPeLaneConfig
from hdl.kllm.outliers.outlier import KllmOutlier
from hdl.kllm.outliers.outlier_in_turn import KllmOutlierInTurn
from hdl.ports import In, Out
from hdl.stream.link import link


class KllmLaneSparse(Block):
    """``S[c] = sum over present words of x * codebook_b[index[c][element]]``, exact.

    A word has the weight indices of a whole beat. ``element`` selects the one that the outlier
    meets in each column. Sums are integers on the grid 2**-48. Every packet has a word with
    ``last`` and at most ``outliers_max`` present words (not checked). The parent changes
    ``codebook_b`` only while no packet is inside.

    The sums leave one column per cycle, ``last`` on the final one.

        =================  ========================  ==========================
        ``outlier_parts``  1                         more
        =================  ========================  ==========================
        a present word     1 cycle                   ``outlier_parts`` cycles
        last to column 0   3 cycles                  2 cycles
        the next packet    overlaps the sums         follows the last sum
        ``i.ready``        depends on ``o.ready``    depends on ``i.p.present``
        =================  ========================  ==========================

    Source: KLLM, section III-D. Golden: golden.kllm.blocks.sparse_sums.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:sparse_sums"
    default = KllmPeLaneConfig()
    configs: ClassVar = {"table1": KllmPeLaneConfig(), "small": SMALL, "serial": SERIAL}

    def __init__(self, config: KllmPeLaneConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.outlier_layout),
                    "An outlier and the weight indices of its beat.",
                ),
                "codebook_b": In(
                    config.codebook_b_layout,
                    "Weight centroids, constant while a packet is inside.",
                    FP16,
                ),
                "o": Out(
                    stream.Signature(config.sparse_layout),
                    "Exact sums on the grid 2**-48, column by column.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        path = KllmOutlier if self.config.outlier_parts == 1 else KllmOutlierInTurn
        return path.timing

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        path = KllmOutlier if config.outlier_parts == 1 else KllmOutlierInTurn
        outliers = add(m, "outlier", path(config.outlier_config))
        m.d.comb += [
            outliers.i.valid.eq(self.i.valid),
            self.i.ready.eq(outliers.i.ready),
            outliers.i.p.present.eq(self.i.p.present),
            outliers.i.p.x.eq(self.i.p.x),
            outliers.i.p.last.eq(self.i.p.last),
            outliers.codebook.eq(self.codebook_b),
        ]
        for c, indices in enumerate(self.i.p.index):
            m.d.comb += outliers.i.p.index[c].eq(Array(list(indices))[self.i.p.element])
        link(m, outliers.o, self.o)
        return m
