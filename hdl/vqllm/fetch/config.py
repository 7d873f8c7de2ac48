"""Size of what a core fetches, and the payloads of its parts."""

import dataclasses

from amaranth.lib import data

from golden.axi.format import Resp
from golden.config import Config, bounded, nested, power_of_two
from golden.vqllm.format import ADDRESS_BITS, DESCRIPTOR, HEADER, ROWS_BITS, Fault, ImageShape
from hdl.kinds import BITS, NUMBER, index_of
from hdl.ports import Payload
from hdl.vqllm.gemv.core import VqGemvCoreConfig
from hdl.vqllm.memory_port import VqReadBufferConfig

_BURST = 16  # words of the longest; another one is on its way meanwhile


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqFetchConfig(Config):
    """The core, how many of them there are, and the words in flight."""

    core: VqGemvCoreConfig = nested(VqGemvCoreConfig)
    cores: int = power_of_two(1, 1, 16, "cores that are fed")
    ahead: int = bounded(64, 4, 256, "words of codes in flight")

    def __post_init__(self) -> None:
        if self.core.cache.address_bits > ADDRESS_BITS:
            self._refuse("core.cache.address_bits", f"at most {ADDRESS_BITS}")

    @property
    def image(self) -> ImageShape:
        cache = self.core.cache
        return ImageShape(
            vq=cache.vq, lookups=cache.lookups, data_bits=cache.data_bits, cores=self.cores,
            rows=self.core.rows, need=self.core.need,
        )  # fmt: skip

    @property
    def address_bits(self) -> int:
        return self.core.cache.address_bits

    def reader(self, words: int) -> VqReadBufferConfig:
        return VqReadBufferConfig(
            address_bits=self.address_bits, data_bits=self.core.cache.data_bits, words=words,
            burst=min(_BURST, words // 2),
        )  # fmt: skip

    @property
    def descriptor_words(self) -> int:
        return self.image.descriptor_bytes // self.image.word_bytes

    @property
    def job_layout(self) -> data.StructLayout:
        return Payload(
            descriptors=(self.address_bits, "of the core's first descriptor", index_of("bytes")),
            tensor=(DESCRIPTOR["tensor"], "number of the matrix", BITS),
            rows=(ROWS_BITS, "rows of the matrix", NUMBER),
            stripe=(ROWS_BITS, "rows of a stripe", NUMBER),
            pieces=(DESCRIPTOR["beats"], "descriptors of a stripe", NUMBER),
            words=self.core.sums.words_field,
            later=(range(max(2, self.cores)), "cores that have the rows after this one's", NUMBER),
            shift=(range(self.cores.bit_length() + 1), "log2 of the cores that share rows"),
            void=(1, "the job is wrong: one row, no descriptor"),
        )

    @property
    def status_layout(self) -> data.StructLayout:
        return Payload(fault=(len(Fault), "what was wrong", Fault), resp=(2, "of memory", Resp))

    # Between the parts

    @property
    def piece_layout(self) -> data.StructLayout:
        """A part of a tile: ``begins`` a job, ``void`` has no codes."""
        sums = self.core.sums
        return data.StructLayout(
            {
                "rows": range(self.core.rows + 1),
                "offset": range(max(2, sums.words)),
                "beats": range(sums.words + 1),
                "tail": DESCRIPTOR["tail"],
                "words": range(sums.words + 1),
                "first": 1, "final": 1, "begins": 1, "load": 1, "void": 1,
                "status": self.status_layout,
            }
        )  # fmt: skip

    @property
    def load_layout(self) -> data.StructLayout:
        """Codebooks to load."""
        return data.StructLayout(
            {
                "book": self.address_bits,
                "tensor": DESCRIPTOR["tensor"],
                "tile": DESCRIPTOR["tile"],
                "bounds": self.core.cache.bounds_layout,
            }
        )

    @property
    def loaded_layout(self) -> data.StructLayout:
        """The end of a load: ``swap`` says that the cache has it."""
        entries = HEADER["entries"]
        return data.StructLayout({"swap": 1, "entries": entries, "status": self.status_layout})
