"""Blocks of VQ-LLM by name."""

import dataclasses

from golden.million.config import PqShape, RateShape
from golden.vqllm.config import ATTEND, NAMED, AttendShape, ExchangeShape, VqShape
from hdl.registry import Registered, Room
from hdl.vqllm.attend.attention import VqAttention
from hdl.vqllm.attend.config import VqAttentionConfig
from hdl.vqllm.cache.cache import VqCodebookCache
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.dequantizer import VqDequantizer, VqDequantizerConfig
from hdl.vqllm.exchange import VqExchange, VqExchangeConfig
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.core import VqGemvCore, VqGemvCoreConfig
from hdl.vqllm.gemv.gemm import VqGemm, VqGemmConfig
from hdl.vqllm.gemv.gemv import VqGemv
from hdl.vqllm.kv_encoder import VqKvEncoder, VqKvEncoderConfig
from hdl.vqllm.layout_buffer import VqLayoutBuffer, VqLayoutBufferConfig
from hdl.vqllm.reduce import VqReduce, VqReduceConfig
from hdl.vqllm.row.config import VqRowSumsConfig
from hdl.vqllm.row.finish import VqRowFinish, VqRowFinishConfig
from hdl.vqllm.row.sums import VqRowSums
from hdl.vqllm.table.config import VqTableGemvConfig
from hdl.vqllm.table.gemv import VqTableGemv

_SMALL_SUMS = VqRowSumsConfig(macs=4, batch=2, columns=32, rows=8)
_TO_TWO = ExchangeShape(size=4, need=2, lanes=16)
_TO_ONE = ExchangeShape(size=2, need=1, lanes=4)
_WIDEST = ExchangeShape(size=16, need=1, lanes=32)

_SMALL_PQ = PqShape(head_dim=32, subspaces=8, bits=4)
_CACHES = {
    "aqlm3": VqCodebookCacheConfig(vq=NAMED["aqlm3"], shared=4096, banks=16),
    "gptvq2": VqCodebookCacheConfig(vq=NAMED["gptvq2"], lookups=16, banks=16),
    "quip4": VqCodebookCacheConfig(vq=NAMED["quip4"]),
    "aqlm2x8": VqCodebookCacheConfig(vq=NAMED["aqlm2x8"], banks=16),
    "aqlm1x16": VqCodebookCacheConfig(vq=NAMED["aqlm1x16"], lookups=4, shared=4096),
    "small": VqCodebookCacheConfig(
        vq=VqShape(size=2, entries=16), lookups=4, registers=2, shared=8, banks=2, beats=8,
        data_bits=64,
    ),
}
_CORES = {
    **{name: VqGemvCoreConfig(cache=cache) for name, cache in _CACHES.items()},
    "small": VqGemvCoreConfig(cache=_CACHES["small"], batch=2, columns=32, rows=8),
}  # fmt: skip
_ENGINES = {
    f"{name}{'_x4' * (cores > 1)}": VqGemvConfig(core=core, cores=cores, lanes=cores)
    for name, core in _CORES.items() if name != "small"
    for cores in (1, 4)
}  # fmt: skip
# Twice the look-ups of gptvq2, and as many products
_EXCHANGED = VqGemvCoreConfig(
    cache=dataclasses.replace(_CACHES["gptvq2"], lookups=32), fusion="exchange", need=2
)

BLOCKS = {
    "vq_attention": Registered(
        component=VqAttention,
        config=VqAttentionConfig(),
        configs={
            **{name: VqAttentionConfig(shape=ATTEND[name]) for name in ("cq2", "cq4_64", "cq2_64")},
            "small": VqAttentionConfig(
                shape=AttendShape(
                    pq=_SMALL_PQ, groups=4, queries=2, data_bits=64, max_tokens=40
                ),
                books=3, burst_beats=4, words=16,
            ),
        },
        golden="golden.vqllm.attention:attend",
        checked="small",
    ),
    "vq_codebook_cache": Registered(
        component=VqCodebookCache,
        config=VqCodebookCacheConfig(),
        configs={name: _CACHES[name] for name in ("aqlm3", "gptvq2", "quip4", "small")},
        golden="golden.vqllm.cache:LookUps",
    ),
    "vq_dequantizer": Registered(
        component=VqDequantizer,
        config=VqDequantizerConfig(),
        configs={
            "aqlm3": VqDequantizerConfig(vq=NAMED["aqlm3"]),
            "quip4": VqDequantizerConfig(vq=NAMED["quip4"], vectors=4),
            "small": VqDequantizerConfig(vq=VqShape(size=2, stages=3)),
        },
        golden="golden.vqllm.matrix:summed",
    ),
    "vq_exchange": Registered(
        component=VqExchange,
        config=VqExchangeConfig(),
        configs={
            "gptvq2": VqExchangeConfig(shape=_TO_TWO),
            "in_place": VqExchangeConfig(in_place=True),
            "variable": VqExchangeConfig(
                shape=ExchangeShape(size=16, need=2, lanes=16), variable=True
            ),
            "widest": VqExchangeConfig(shape=_WIDEST),
            "small": VqExchangeConfig(shape=_TO_ONE),
        },
        golden="golden.vqllm.exchange:exchanged",
    ),
    "vq_gemm": Registered(
        component=VqGemm,
        config=VqGemmConfig(),
        configs={
            **{name: VqGemmConfig(cache=_CACHES[name]) for name in ("aqlm3", "gptvq2")},
            "small": VqGemmConfig(
                cache=_CACHES["small"], batch=2, tokens=8, columns=32, rows=8, scaled=True
            ),
        },
        golden="golden.vqllm.product:by_dequantizing",
    ),
    "vq_gemv": Registered(
        component=VqGemv,
        config=VqGemvConfig(),
        configs={
            **_ENGINES,
            "gptvq2_exchange": VqGemvConfig(core=_EXCHANGED),
            "small": VqGemvConfig(core=_CORES["small"], scaled=True, ahead=8, far=8),
            "small_x4": VqGemvConfig(core=_CORES["small"], cores=4, lanes=2, ahead=8, far=8),
        },
        golden="golden.vqllm.product:by_dequantizing",
    ),
    "vq_gemv_core": Registered(
        component=VqGemvCore,
        config=VqGemvCoreConfig(),
        configs={name: _CORES[name] for name in ("aqlm3", "gptvq2", "quip4", "small")},
        golden="golden.vqllm.product:exact_sums",
    ),
    "vq_reduce": Registered(
        component=VqReduce,
        config=VqReduceConfig(),
        configs={"small": VqReduceConfig(sums=_SMALL_SUMS, lanes=2)},
        golden="golden.vqllm.product:exact_sums",
    ),
    "vq_layout_buffer": Registered(
        component=VqLayoutBuffer,
        config=VqLayoutBufferConfig(),
        configs={
            "gptvq2": VqLayoutBufferConfig(shape=_TO_TWO),
            "widest": VqLayoutBufferConfig(shape=_WIDEST),
            "small": VqLayoutBufferConfig(shape=_TO_ONE),
        },
        golden="golden.vqllm.exchange:exchanged",
    ),
    "vq_kv_encoder": Registered(
        component=VqKvEncoder,
        config=VqKvEncoderConfig(books=8),
        configs={
            "cq2": VqKvEncoderConfig(pq=ATTEND["cq2"].pq, books=8),
            "cq4_64": VqKvEncoderConfig(pq=ATTEND["cq4_64"].pq, books=3),
            "cq2_64": VqKvEncoderConfig(pq=ATTEND["cq2_64"].pq, books=3),
            "small": VqKvEncoderConfig(
                pq=_SMALL_PQ, rate=RateShape(macs=8, window_macs=8, lanes=8), books=2
            ),
        },
        golden="golden.index.pq:exact_codes",
    ),
    "vq_row_finish": Registered(
        component=VqRowFinish,
        config=VqRowFinishConfig(),
        configs={
            "scaled": VqRowFinishConfig(scaled=True),
            "small": VqRowFinishConfig(sums=_SMALL_SUMS, scaled=True),
        },
        golden="golden.vqllm.product:rounded",
    ),
    "vq_row_sums": Registered(
        component=VqRowSums,
        config=VqRowSumsConfig(),
        configs={
            "smollm2": VqRowSumsConfig(macs=32, columns=1536, rows=1536),
            "gptvq2": VqRowSumsConfig(macs=64, largest=1, columns=11264),
            "groups": VqRowSumsConfig(groups=64, columns=1536),
            "small": _SMALL_SUMS,
        },
        golden="golden.vqllm.product:exact_sums",
    ),
    "vq_table_gemv": Registered(
        component=VqTableGemv,
        config=VqTableGemvConfig(),
        configs={
            "aqlm2x8": VqTableGemvConfig(rows=11264),
            "aqlm3": VqTableGemvConfig(vq=NAMED["aqlm3"], rows=11264),
            "gptvq2": VqTableGemvConfig(vq=NAMED["gptvq2"], lookups=16, lanes=16, rows=256),
            "small": VqTableGemvConfig(
                vq=VqShape(size=2, entries=16), lookups=4, lanes=1, batch=2, columns=32, rows=8,
                scaled=True,
            ),
        },
        golden="golden.vqllm.product:by_tables",
    ),
}  # fmt: skip

ROOM = Room(blocks=BLOCKS, tables=("vqllm",))
