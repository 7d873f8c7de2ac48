"""Whether the bursts that a block reads make up the images that it shall read."""

from collections.abc import Iterable, Mapping

from tb.axi.support.memory import Ram


def check_reads(ram: Ram, bursts: Iterable[tuple[int, int]], images: Mapping[str, bytes]) -> None:
    """AssertionError unless the bursts read each image once, from its first byte to its last.

    bursts : (address, words) in order. Each one continues one of the images, so a block may read
    several images in turn. It may read them from any address.
    """
    done = dict.fromkeys(images, 0)
    for address, words in bursts:
        found = ram.peek(address, words * ram.word_bytes)
        name = next(
            (name for name, image in images.items() if image.startswith(found, done[name])), None
        )
        assert name is not None, f"{words} words at {address:#x} continue no image: {done}"
        done[name] += len(found)
    sizes = {name: len(image) for name, image in images.items()}
    assert done == sizes, f"bytes read: {done}, of images of {sizes}"
