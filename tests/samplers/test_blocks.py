"""The tree of blocks, played through with a pool that holds token ids instead of keys and values."""

import numpy as np
import pytest

from patr.samplers.blocks import BlockTable

S = 4


class Pool:
    """Does to ids what the sampler's compiled functions do to keys and values."""

    def __init__(self, blocks):
        self.table = BlockTable(blocks, S)
        self.content = np.full((blocks, S), -1)

    def serve(self, requests, sampled=2):
        """Place, prefill and decode (prompt, answer) in one round. Gives back the tokens computed for each placed."""
        self.table.begin_round()
        leaders, placed = {}, []
        for prompt, answer in requests:
            room = len(prompt) + len(answer)
            if prompt in leaders:
                placement = self.table.place_copy(leaders[prompt], len(prompt), room)
            else:
                placement = self.table.place(prompt, room)
            if placement is None:
                break
            placed.append((prompt, answer, placement, prompt in leaders))
            leaders.setdefault(prompt, placement)
        for prompt, _, placement, copies in placed:
            if not copies:
                self._write(placement, prompt, placement.cached)
        for prompt, _, placement, copies in placed:
            if copies:
                self._write(placement, prompt, len(prompt))
            assert self._read(placement, len(prompt)) == prompt
        for prompt, answer, placement, _ in placed:
            self._write(placement, prompt + answer, len(prompt), own=True)
            self.table.commit(placement, prompt + answer)
        return [len(prompt) - placement.cached for prompt, _, placement, _ in placed]

    def _write(self, placement, ids, start, own=False):
        at = start // S
        if start % S and not own and placement.source is not None:
            self.content[placement.blocks[at].number] = self.content[placement.source.number]
        for i in range(start, len(ids)):
            self.content[placement.blocks[i // S].number, i % S] = ids[i]

    def _read(self, placement, length):
        return tuple(np.concatenate([self.content[block.number] for block in placement.blocks])[:length].tolist())


def ids(*parts):
    return tuple(int(i) for part in parts for i in part)


def test_only_what_is_new_is_computed():
    pool = Pool(32)
    root = ids(range(10))
    assert pool.serve([(root, (50, 51)), (root, (60, 61))]) == [10, 0]
    # Each goes on from its own answer: in place, no token of the path is computed again.
    assert pool.serve([(ids(root, (50, 51, 7)), (1,)), (ids(root, (60, 61, 7)), (1,))]) == [1, 1]
    # A third way from the middle of the first path's last block.
    assert pool.serve([(ids(root, (50, 9)), (1,))]) == [1]


def test_whole_blocks_of_the_same_round_are_shared():
    pool = Pool(32)
    start = ids(range(9))
    # Two whole blocks come from the first request; the odd token and what follows are the second's own.
    assert pool.serve([(ids(start, (20, 21)), (1,)), (ids(start, (30, 31, 32)), (1,))]) == [11, 4]


def test_the_longest_unused_path_is_forgotten_first():
    pool = Pool(6)
    old, new, third = ids(range(8)), ids(range(20, 28)), ids(range(40, 48))
    pool.serve([(old, (1,))])
    pool.serve([(new, (1,))])
    pool.serve([(old, (1,))])
    assert pool.serve([(third, (1,))]) == [8]
    assert pool.serve([(old, (1,))]) == [1]
    assert pool.serve([(new, (1,))]) == [8]


def test_what_finds_no_room_waits_for_the_next_round():
    pool = Pool(4)
    requests = [(ids(range(10)), (1,)), (ids(range(20, 30)), (1,))]
    assert pool.serve(requests) == [10]
    assert pool.serve(requests[1:]) == [10]


def test_forgetting_frees_everything():
    pool = Pool(4)
    pool.serve([(ids(range(10)), (1,))])
    pool.table.forget()
    assert pool.serve([(ids(range(10)), (1,))]) == [10]


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_read_back_what_they_wrote(seed):
    """Paths that grow, fork and come back after they were forgotten; few symbols, so that beginnings coincide."""
    rng = np.random.default_rng(seed)
    pool, paths = Pool(int(rng.integers(14, 60))), [ids(rng.integers(0, 3, 5))]
    for _ in range(30):
        requests = []
        for _ in range(rng.integers(1, 7)):
            path = paths[rng.integers(len(paths))]
            prompt = ids(path[: rng.integers(1, len(path) + 1)], rng.integers(0, 3, rng.integers(0, 6)))[:40]
            requests.append((prompt, ids(rng.integers(0, 3, rng.integers(1, 8)))))
        while requests:
            done = len(pool.serve(requests))
            assert done
            paths += [prompt + answer for prompt, answer in requests[:done]]
            requests = requests[done:]
