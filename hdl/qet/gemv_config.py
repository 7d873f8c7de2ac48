"""Size of qet_dequant_gemv, and the payloads of its jobs."""

import dataclasses

from amaranth.lib import data

from golden.axi.format import Resp
from golden.config import Config, ConfigError, bounded
from golden.qet.format import Fault, ImageShape
from hdl.kinds import NUMBER, index_of
from hdl.ports import Payload
from hdl.qet.decoder import QetDecoderConfig
from hdl.qet.tile import EXPONENTS, QetTileConfig
from hdl.stream.repack import StreamRepackConfig
from hdl.vqllm.memory_port import VqPortShareConfig, VqReadBufferConfig
from hdl.vqllm.row.config import VqRowSumsConfig
from hdl.vqllm.row.finish import VqRowFinishConfig

_BURST = 16  # words
_TILE_MAX = 256  # products of a cycle
_BYTES_MAX = 256  # of entries or of a row


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetDequantGemvConfig(QetTileConfig):
    """Tiles, vectors, the largest matrix, and memory."""

    batch: int = 1  # vectors side by side, 1..64
    columns: int = 11264  # most of the matrix, a multiple of those of a tile
    rows: int = bounded(1024, 1, 1 << 16, "most of the matrix, whose sums are kept")
    address_bits: int = 40  # of a byte address, 32..64
    data_bits: int = 512  # of a word of memory, a power of two in 64..1024
    ahead: int = bounded(64, 4, 256, "words in flight of the codebooks, and of the rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape.columns > _TILE_MAX:
            self._refuse("shape", f"of tiles of at most {_TILE_MAX} columns")
        for what, size in (
            ("entries", self.image.entry_bytes), ("codes and maps", self.image.row_bytes),
        ):  # fmt: skip
            if size > _BYTES_MAX:
                raise ConfigError(
                    f"QetDequantGemvConfig.shape must have {what} of at most {_BYTES_MAX} bytes "
                    f"side by side, not {size}"
                )
        self.check_parts()

    @property
    def image(self) -> ImageShape:
        return ImageShape(shape=self.shape, data_bits=self.data_bits)

    @property
    def decoder(self) -> QetDecoderConfig:
        return QetDecoderConfig(shape=self.shape)

    @property
    def sums(self) -> VqRowSumsConfig:
        stages = len(self.shape.stages)
        return VqRowSumsConfig(
            macs=self.shape.columns,
            # Each stage is at most 2. A range may exceed that by 1 in 500. The sums have room for
            # x of the next binade, which no finite one is in.
            largest=2 << (stages - 1).bit_length(),
            batch=self.batch,
            columns=self.columns,
            rows=self.rows,
        )

    @property
    def finish(self) -> VqRowFinishConfig:
        return VqRowFinishConfig(sums=self.sums)

    @property
    def tiles(self) -> int:
        """Most tiles of a matrix."""
        return self.columns // self.shape.columns

    @property
    def share(self) -> VqPortShareConfig:
        return VqPortShareConfig(
            readers=2, address_bits=self.address_bits, data_bits=self.data_bits
        )

    @property
    def books(self) -> "QetTileReaderConfig":
        entries = sum(stage.entries for stage in self.shape.stages)
        return self._reader(self.image.entry_bytes, self.image.book_words(entries))

    @property
    def codes(self) -> "QetTileReaderConfig":
        return self._reader(self.image.row_bytes, self.image.row_words(self.rows))

    def _reader(self, size: int, words: int) -> "QetTileReaderConfig":
        return QetTileReaderConfig(
            address_bits=self.address_bits, data_bits=self.data_bits, ahead=self.ahead,
            unit=size, words=words, tiles=self.tiles,
        )  # fmt: skip

    @property
    def job_layout(self) -> data.StructLayout:
        return Payload(
            books=(self.address_bits, "address of the codebooks", index_of("bytes")),
            codes=(self.address_bits, "address of the rows", index_of("bytes")),
            rows=(range(self.rows + 1), "rows of the matrix, from 1 on", NUMBER),
            tiles=(range(self.tiles + 1), "tiles of the matrix, from 1 on", NUMBER),
            exponent=(EXPONENTS, "log2 of the scale of the matrix"),
            **self.numbers,
        )

    @property
    def status_layout(self) -> data.StructLayout:
        return Payload(fault=(len(Fault), "what was wrong", Fault), resp=(2, "of memory", Resp))


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetTileReaderConfig(Config):
    """One kind of words of a tile, and memory."""

    address_bits: int = 40  # of a byte address, 32..64
    data_bits: int = 512  # of a word of memory, a power of two in 64..1024
    ahead: int = 64  # words in flight, 4..256
    unit: int = 80  # bytes of a word that leaves, 1..256
    words: int = bounded(1024, 1, 1 << 24, "most words of memory of a tile")
    tiles: int = bounded(176, 1, 1 << 20, "most of a job")

    def __post_init__(self) -> None:
        self.check_parts()

    @property
    def reader(self) -> VqReadBufferConfig:
        return VqReadBufferConfig(
            address_bits=self.address_bits, data_bits=self.data_bits, words=self.ahead,
            burst=min(_BURST, self.ahead // 2),
        )  # fmt: skip

    @property
    def repack(self) -> StreamRepackConfig:
        return StreamRepackConfig(in_bytes=self.data_bits // 8, out_bytes=self.unit, error_bits=2)

    @property
    def job_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "address": self.address_bits,
                "words": range(self.words + 1),
                "bytes": range(self.words * self.data_bits // 8 + 1),
                "tiles": range(self.tiles + 1),
            }
        )
