"""Sizes and payloads that the parts of oaken_attention share."""

import dataclasses
from fractions import Fraction

from amaranth.lib import data

from golden.attention.format import Status as JobStatus
from golden.config import Config, bounded, choice, nested
from golden.oaken.config import CacheConfig, KvShape
from golden.paging.format import Status
from golden.timing import Timing
from hdl.attention.cap import CAP_BITS, CAP_TEXT
from hdl.attention.stream_config import ROWS_BITS, AttentionStreamConfig
from hdl.kinds import BITS, NUMBER, index_of
from hdl.oaken.kv_engine import OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from hdl.paging.layouts import TOKEN_BITS
from hdl.ports import Payload

JOBS = 8  # jobs whose K is requested and whose output has not ended
ROWS_MAX = 32768  # of a job of attention_stream
STATUS_BITS = 4
# Delays of the timing.
LONGER = "of a run of more groups or attends, plus the beats of all rows"
ENDED = "from the last of o to attended"


def _engine() -> OakenKvEngineConfig:
    kv = KvShape(heads=32, head_dim=128, order="token", groups=4)
    cache = CacheConfig(kv=kv, layers=32, pages=65536)
    return OakenKvEngineConfig(mmu=PagingMmuConfig(cache=cache, data_bits=512), lanes=64)


attend_layout = Payload(
    tag=(8, "comes back with attended", BITS),
    sequence=(8, "number of the sequence", index_of("sequences")),
    layer=(8, "layer of the model", index_of("layers")),
    token=(TOKEN_BITS, "one past the last token", NUMBER),
    last=(1, "ends a run: V of this attend follows its K"),
)
_WINDOW = (TOKEN_BITS, "most tokens that it sees, the latest; 0: all", NUMBER)
_CAP = (CAP_BITS, f"cap of its scores: {CAP_TEXT}", BITS)
attended_layout = Payload(
    tag=(8, "tag of the attend", BITS),
    status=(STATUS_BITS, "golden.paging.format.Status of its READs", Status),
    result=(3, "golden.attention.format.Status; OK where status is not", JobStatus),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenAttentionConfig(Config):
    """The cache, and the attention on it: a job per attend and group of KV heads."""

    engine: OakenKvEngineConfig = nested(_engine, "the cache, of order token", OakenKvEngineConfig)
    queries: int = bounded(1, 1, 8, "L: query heads that share a KV head")
    macs: int = bounded(64, 16, 512, "products per cycle: lanes times a divisor of queries")
    width: int = choice(16, (4, 8, 16), "words per beat of q and o")

    def __post_init__(self) -> None:
        kv = self.cache.kv
        if not kv.is_by_token:
            self._refuse("engine.mmu.cache.kv.order", "token")
        if self.cache.max_tokens > ROWS_MAX:
            self._refuse("engine.mmu.cache.max_tokens", f"at most {ROWS_MAX}")
        # What the parts refuse is refused here, before elaboration.
        self.check_parts()

    @property
    def cache(self) -> CacheConfig:
        return self.engine.cache

    @property
    def groups(self) -> int:
        """Jobs of an attend."""
        return self.cache.kv.groups

    @property
    def cache_engine(self) -> OakenKvEngineConfig:
        """The engine as this block has it."""
        return dataclasses.replace(self.engine, tells=True)

    @property
    def stream(self) -> AttentionStreamConfig:
        kv = self.cache.kv
        return AttentionStreamConfig(
            heads=kv.part_heads,
            head_dim=kv.head_dim,
            queries=self.queries,
            lanes=self.engine.lanes,
            macs=self.macs,
            width=self.width,
            max_rows=self.cache.max_tokens,
            caps=self.cache.caps,
            sinks=self.cache.sinks,
        )

    @property
    def words(self) -> int:
        """Beats of o of an attend."""
        return self.queries * self.cache.kv.elements // self.width

    @property
    def query_words(self) -> int:
        """Beats of q of an attend: those of each job begin with its sinks."""
        return self.words + self.groups * self.stream.sink_beats

    @property
    def ahead(self) -> int:
        """READs without a status: the engine's queue takes them, so that no request waits."""
        return self.engine.queue + 1

    @property
    def timing(self) -> Timing:
        """The memory answers in the next cycle, and brings each beat in time."""
        shape = self.stream.shape
        read, most = self.cache_engine.read_cycles(1), self.cache.max_tokens
        rows = 2 * shape.row * most
        return Timing(
            latency=read + shape.run(most, 1) - rows + 1,
            interval=Fraction(shape.turns),
            start="an attend of one group",
            end="attended, plus the beats of its rows",
            unit="beat of K or V",
            delays=(
                (LONGER, read + shape.run(most, 2) - 2 * rows + 1),
                (ENDED, 2),
            ),
        )

    @property
    def request_layout(self) -> data.StructLayout:
        return self.engine.request_layout

    @property
    def status_layout(self) -> data.StructLayout:
        return self.engine.status_layout

    @property
    def kv_layout(self) -> data.StructLayout:
        return self.engine.kv_layout

    @property
    def attend_layout(self) -> Payload:
        return attend_layout_of(self.cache)

    @property
    def attended_layout(self) -> Payload:
        return attended_layout

    @property
    def q_layout(self) -> Payload:
        return self.stream.q_layout

    @property
    def o_layout(self) -> Payload:
        return Payload(
            **self.stream.q_layout.parts,
            void=(1, "the attend was refused, so that the words count for nothing"),
            last=(1, "final beat of the attend"),
        )

    @property
    def task_layout(self) -> Payload:
        """A job whose output is due."""
        return Payload(tag=8, last=1)

    @property
    def stretch_layout(self) -> Payload:
        """``rows`` that the job takes; whether a READ gives any, and gives another number.

        skip: rows of the READ before them.
        """
        skip = {"skip": ROWS_BITS} if self.cache.windows else {}
        return Payload(rows=ROWS_BITS, has_words=1, differs=1, **skip)


def attend_layout_of(cache: CacheConfig) -> Payload:
    """Attends of a cache."""
    more = {"window": _WINDOW} if cache.windows else {}
    more |= {"cap": _CAP} if cache.caps else {}
    return Payload(**attend_layout.parts, **more) if more else attend_layout


def is_refusal(status):
    """Whether a READ ended before memory was read."""
    return (status != Status.OK) & (status < Status.SLAVE_ERROR)
