"""The stream blocks by name."""

from hdl.registry import Room, registered
from hdl.stream.arbiter import StreamArbiter
from hdl.stream.fifo import StreamFifo
from hdl.stream.fork import StreamFork
from hdl.stream.join import StreamJoin
from hdl.stream.narrow import StreamNarrow
from hdl.stream.register import StreamRegister
from hdl.stream.repack import StreamRepack
from hdl.stream.skid import StreamSkidBuffer
from hdl.stream.widen import StreamWiden

BLOCKS = registered(
    StreamRegister,
    StreamSkidBuffer,
    StreamFifo,
    StreamFork,
    StreamJoin,
    StreamWiden,
    StreamNarrow,
    StreamRepack,
    StreamArbiter,
)

ROOM = Room(blocks=BLOCKS)
