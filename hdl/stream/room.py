"""The stream blocks by name."""

from hdl.registry import Registered, Room
from hdl.stream.arbiter import StreamArbiter, StreamArbiterConfig
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from hdl.stream.fork import StreamFork, StreamForkConfig
from hdl.stream.join import StreamJoin, StreamJoinConfig
from hdl.stream.narrow import StreamNarrow, StreamNarrowConfig
from hdl.stream.register import StreamRegister, StreamRegisterConfig
from hdl.stream.repack import StreamRepack, StreamRepackConfig
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig
from hdl.stream.widen import StreamWiden, StreamWidenConfig

_REFERENCE = "golden.stream.reference"

BLOCKS = {
    "stream_register": Registered(
        component=StreamRegister,
        config=StreamRegisterConfig(),
        configs={"smallest": StreamRegisterConfig(width=1)},
        golden=f"{_REFERENCE}:identity",
    ),
    "stream_skid": Registered(
        component=StreamSkidBuffer,
        config=StreamSkidBufferConfig(),
        configs={"smallest": StreamSkidBufferConfig(width=1)},
        golden=f"{_REFERENCE}:identity",
    ),
    "stream_fifo": Registered(
        component=StreamFifo,
        config=StreamFifoConfig(),
        configs={
            "smallest": StreamFifoConfig(width=1, depth=1),
            "odd": StreamFifoConfig(width=7, depth=5),
            "ram": StreamFifoConfig(width=64, depth=512, storage="memory"),
            "ram_odd": StreamFifoConfig(width=7, depth=5, storage="memory"),
        },
        golden=f"{_REFERENCE}:identity",
    ),
    "stream_fork": Registered(
        component=StreamFork,
        config=StreamForkConfig(),
        configs={
            "smallest": StreamForkConfig(width=1, outputs=1),
            "odd": StreamForkConfig(width=7, outputs=5),
        },
        golden=f"{_REFERENCE}:fork",
    ),
    "stream_join": Registered(
        component=StreamJoin,
        config=StreamJoinConfig(),
        configs={
            "smallest": StreamJoinConfig(width=1, inputs=1),
            "odd": StreamJoinConfig(width=7, inputs=3),
        },
        golden=f"{_REFERENCE}:join",
    ),
    "stream_widen": Registered(
        component=StreamWiden,
        config=StreamWidenConfig(),
        configs={
            "smallest": StreamWidenConfig(width=1, ratio=1),
            "odd": StreamWidenConfig(width=5, ratio=3),
        },
        golden=f"{_REFERENCE}:widen",
    ),
    "stream_narrow": Registered(
        component=StreamNarrow,
        config=StreamNarrowConfig(),
        configs={
            "smallest": StreamNarrowConfig(width=1, ratio=1),
            "odd": StreamNarrowConfig(width=5, ratio=3),
        },
        golden=f"{_REFERENCE}:narrow",
    ),
    "stream_repack": Registered(
        component=StreamRepack,
        config=StreamRepackConfig(),
        configs={
            "smallest": StreamRepackConfig(in_bytes=1, out_bytes=1),
            "odd": StreamRepackConfig(in_bytes=5, out_bytes=3),
            "gather": StreamRepackConfig(in_bytes=16, out_bytes=64),
        },
        golden=f"{_REFERENCE}:repack",
    ),
    "stream_arbiter": Registered(
        component=StreamArbiter,
        config=StreamArbiterConfig(),
        configs={
            "smallest": StreamArbiterConfig(width=1, inputs=1),
            "odd": StreamArbiterConfig(width=7, inputs=3),
            "priority": StreamArbiterConfig(width=7, inputs=3, policy="priority"),
        },
        golden=f"{_REFERENCE}:check_arbitration",
    ),
}

ROOM = Room(blocks=BLOCKS)
