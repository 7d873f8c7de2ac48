"""The pair of trees over the words of a token, comparison by comparison. Pure Python."""

from golden.fp16.format import FP16

_MAGNITUDE = FP16.sign_bit - 1


class OrizuruTrees:
    """Two complete binary trees over the leaves of one token; ``comparisons`` counts.

    Heap order: node 1 is the root, node i has children 2i and 2i+1, leaf p is node (size + p). A
    node holds the position of its winner. None marks a node without elements. The lowest level is
    compared once: one bit says left >= right, the max tree follows it, the min tree its inverse.
    An empty node needs no comparison. words: FP16 words without NaN.
    """

    def __init__(self, words: list[int]):
        self.words = words
        self.comparisons = 0
        self._key = [-1 - (w & _MAGNITUDE) if w >> 15 else w for w in words]
        self._size = 1 << (len(words) - 1).bit_length()
        leaves: list[int | None] = [p if p < len(words) else None for p in range(self._size)]
        self._pending: dict[bool, int | None] = {False: None, True: None}
        inner: list[int | None] = [None] * self._size
        self._tree: dict[bool, list[int | None]] = {
            False: [*inner, *leaves],
            True: [*inner, *leaves],
        }
        for node in range(self._size - 1, 0, -1):
            is_lowest = 2 * node >= self._size
            largest = self._winner(node, smallest=False)
            if not is_lowest:
                self._tree[True][node] = self._winner(node, smallest=True)
            else:
                left, right = self._tree[False][2 * node : 2 * node + 2]
                other = left if largest == right else right
                self._tree[True][node] = largest if other is None else other
            self._tree[False][node] = largest

    def _winner(self, node: int, smallest: bool) -> int | None:
        left, right = self._tree[smallest][2 * node : 2 * node + 2]
        if left is None or right is None:
            return right if left is None else left
        self.comparisons += 1
        left_is_larger = self._key[left] >= self._key[right]  # equal: the lower position is
        return left if left_is_larger != smallest else right

    def root(self, smallest: bool = False) -> int:
        """Position that the root of one tree shows, repaired if its last pop was not yet.

        IndexError: nothing is left.
        """
        tree, popped = self._tree[smallest], self._pending[smallest]
        if popped is not None:
            node = self._size + popped
            tree[node] = None
            while node > 1:
                node //= 2
                tree[node] = self._winner(node, smallest)
            self._pending[smallest] = None
        if tree[1] is None:
            raise IndexError("nothing is left to pop")
        return tree[1]

    def pop(self, smallest: bool = False) -> int:
        """Take the root's position out of one tree; the other tree keeps it."""
        position = self.root(smallest)
        self._pending[smallest] = position
        return position
