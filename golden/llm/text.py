"""A little prose of our own, to calibrate codebooks on and to measure them with. Disjoint parts."""

import functools
from pathlib import Path


@functools.cache
def sample() -> str:
    """13,075 tokens of SmolLM2's tokenizer, for calibrations that need thousands.

    SmolLM2-135M-Instruct wrote them at a temperature of 0.9 after twelve openings of our own.
    """
    return Path(__file__).with_name("sample.txt").read_text(encoding="ascii")


# About 400 tokens of the SmolLM2 tokenizer.
CALIBRATION = """\
The mill stood where the river turned south, and for most of the year its wheel was the loudest
thing in the valley. Anna had learned to sleep through it. What woke her that morning was the
silence. She went down the wooden stairs in her socks, put a hand on the cold beam of the gearbox,
and felt nothing move. Outside, the water had fallen by half a metre overnight; a line of wet mud
showed where it used to run.

Rivers seldom change so fast without a cause. Heavy rain raises the level within hours, but a drop
of this size means that something upstream is holding the water back: ice, a fallen tree, a gate
that somebody forgot to open. The flow through a rectangular gate grows with the opening and with
the square root of the depth behind it, so a gate that is a quarter open passes far less than half
of what a miller expects. In 1911 the county recorded 37 such stoppages, and 29 of them ended as
soon as a man with a crowbar walked up to the weir.

"Take the long rope," her father said, "and the notebook. If it is the gate, write down the time
and the height. If it is the tree, do not touch it alone." She nodded, although both of them knew
that she would at least try.

To sort a list of numbers by hand, compare neighbours and exchange them when they stand in the wrong
order; repeat until a whole pass changes nothing. In code: for i in range(n - 1): if a[i] > a[i+1]:
a[i], a[i+1] = a[i+1], a[i]. The method is slow for long lists, yet each step is so simple that
it can be built from two wires and a comparator, and many such steps can be done at once.
"""

# About 170 tokens; nothing of it is in the text above.
EVALUATION = """\
Fresh bread keeps best in a cloth bag at room temperature. In a refrigerator its starch hardens
within a day, while the crust turns soft. A loaf that has become dry can be saved: sprinkle it with
water and heat it for eight minutes at 180 degrees. The baker across the street sells yesterday's
rolls for 20 cents, and by ten o'clock there are none left.

Question: a train leaves at 14:05 and needs 50 minutes; when does it arrive? Answer: at 14:55,
unless it waits outside the station, as it did on Monday, on Tuesday, and on the day when the queen
of Denmark was on board. My uncle, who drove that train, told the story for thirty years, and each
time the queen stayed for one cup of coffee more.
"""
