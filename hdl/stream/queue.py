"""Typed queues inside an engine: a StreamFifo whose words are of any shape."""

import dataclasses

from amaranth import Module, Shape, Value

from hdl.children import add
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from hdl.stream.link import StreamView
from hdl.target import queue_storage


@dataclasses.dataclass(frozen=True)
class Queue:
    """The result of ``queue``: typed streams ``i`` and ``o``, and ``level``, the words held."""

    i: StreamView
    o: StreamView
    level: Value


def queue(m: Module, name: str, shape, depth: int, *, storage: str = "") -> Queue:
    """Add a queue of ``depth`` words of ``shape`` to ``m`` as ``name``.

    Words leave ``o`` in the order in which ``i`` took them. ``shape`` is a layout or a width in
    bits; the queue has ``last`` only if ``shape`` has it. Timing by ``storage``, and the range
    of ``depth``, are those of StreamFifo. Without ``storage`` it is that of ``hdl.target``.
    ConfigError names a size that StreamFifo refuses.
    """
    storage = storage or queue_storage(depth)
    config = StreamFifoConfig(
        width=Shape.cast(shape).width, depth=depth, storage=storage, last=False
    )
    fifo = add(m, name, StreamFifo(config))
    return Queue(
        StreamView.of(fifo.i.p.data, shape, fifo.i),
        StreamView.of(fifo.o.p.data, shape, fifo.o),
        fifo.level,
    )
