"""Size of an engine, and the payloads of its jobs."""

import dataclasses
from typing import ClassVar

from amaranth.lib import data, stream

from golden.axi.format import Resp
from golden.config import Config, bounded, flag, nested
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN
from golden.vqllm.format import DESCRIPTOR, ROWS_BITS, Fault, ImageShape
from golden.vqllm.timing import port_bursts
from hdl.kinds import BITS, NUMBER, index_of
from hdl.ports import Payload
from hdl.vqllm.cache.book_share import VqBookShareConfig
from hdl.vqllm.fetch.config import VqFetchConfig
from hdl.vqllm.gemv.core import VqGemvCoreConfig
from hdl.vqllm.memory_port import VqPortShareConfig
from hdl.vqllm.reduce import VqReduceConfig
from hdl.vqllm.row.finish import VqRowFinishConfig

EXPONENT = range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqGemvConfig(Config):
    """A core, how many of them, and how their sums are added."""

    conditional_parts: ClassVar[tuple[str, ...]] = ("book_share",)

    core: VqGemvCoreConfig = nested(VqGemvCoreConfig)
    cores: int = 1  # a power of two in 1..16
    lanes: int = 1  # sums of cores that are added per cycle, a power of two in 1..cores
    scaled: bool = flag(False, "each row has an FP16 scale")
    ahead: int = 64  # words of codes of a core in flight, 4..256
    far: int = bounded(64, 4, 256, "entries of memory of a core in flight")

    def __post_init__(self) -> None:
        self.check_parts()

    @property
    def fetch(self) -> VqFetchConfig:
        return VqFetchConfig(core=self.core, cores=self.cores, ahead=self.ahead)

    @property
    def image(self) -> ImageShape:
        return self.fetch.image

    @property
    def reduce(self) -> VqReduceConfig:
        return VqReduceConfig(sums=self.core.sums, cores=self.cores, lanes=self.lanes)

    @property
    def finish(self) -> VqRowFinishConfig:
        return VqRowFinishConfig(sums=self.core.sums, scaled=self.scaled)

    @property
    def share(self) -> VqPortShareConfig:
        """Descriptors of each core, codebooks, codes and far entries of each core, scales.

        A far entry is a burst. With 256 of them the port takes a word per cycle up to a latency of
        about 250 cycles.
        """
        cache = self.core.cache
        return VqPortShareConfig(
            readers=3 * self.cores + 1 + self.scaled, address_bits=cache.address_bits,
            data_bits=cache.data_bits, bursts=port_bursts(self.cores, self.far),
        )  # fmt: skip

    @property
    def book_share(self) -> VqBookShareConfig:
        """ConfigError: there is one core, and it shares codebooks with no other."""
        cache = self.core.cache
        return VqBookShareConfig(
            readers=self.cores, address_bits=cache.address_bits, data_bits=cache.data_bits
        )

    @property
    def job_layout(self) -> data.StructLayout:
        address = self.core.cache.address_bits
        scales = {"scales": (address, "address of the scales of the rows", index_of("bytes"))}
        return Payload(
            descriptors=(address, "address of the first descriptor", index_of("bytes")),
            **(scales if self.scaled else {}),
            tensor=(DESCRIPTOR["tensor"], "number of the matrix", BITS),
            rows=(ROWS_BITS, "rows of the matrix, 1..2**20", NUMBER),
            stripe=(ROWS_BITS, "rows of a stripe: the sums that the cores keep", NUMBER),
            pieces=(DESCRIPTOR["beats"], "descriptors of a core and stripe, at least 1", NUMBER),
            split=(3, "log2 of the parts of the columns, up to log2 cores", NUMBER),
            words=self.core.sums.words_field,
            exponent=(EXPONENT, "log2 of the scale of the codebooks, -8..15"),
        )

    @property
    def status_layout(self) -> data.StructLayout:
        return Payload(
            fault=(len(Fault), "what was wrong", Fault),
            resp=(2, "largest response of memory", Resp),
            **{
                name: (shape, f"{self.core.cache.counts_layout.texts[name]}, of all cores", NUMBER)
                for name, shape in self.core.cache.counts_layout.members.items()
            },
        )

    # Between the parts

    @property
    def run_layout(self) -> data.StructLayout:
        """The fields of a job that waits for its turn."""
        return data.StructLayout({"exponent": EXPONENT, "cores": self.cores})

    @property
    def scales_signature(self) -> stream.Signature:
        job = Payload(address=self.core.cache.address_bits, rows=ROWS_BITS)
        return stream.Signature(job)
