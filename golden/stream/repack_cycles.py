"""Cycles of StreamRepack, word by word."""


def model_cycles(words, size, out):
    """Cycles of the transfers on i and o at full offer and demand, as StreamRepack says."""
    i_cycles, o_cycles = [], []
    cycle = count = n = 0
    ended = False
    while n < len(words) or ended or count >= out:
        offers = ended or count >= out
        final = ended and count <= out
        rest = max(count - out, 0) if offers else count
        if offers:
            o_cycles.append(cycle + 1)  # one more through the skid buffer
        takes = n < len(words) and (final if ended else rest < out)
        if final:
            ended = False
        count = rest
        if takes:
            _, first, end, _, last = words[n]
            count += max(min(end, size) - first, 0)
            ended = bool(last)
            i_cycles.append(cycle)
            n += 1
        cycle += 1
    return i_cycles, o_cycles


def completes_first(words, size, out):
    """Returns the number of the word of i that holds the last byte of the first word of o."""
    count = 0
    for n, (_, first, end, _, last) in enumerate(words):
        count += max(min(end, size) - first, 0)
        if count >= out or last:
            return n
    raise AssertionError("no word of o is complete")
