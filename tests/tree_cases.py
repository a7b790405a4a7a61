"""Small trees for tests of packing and losses: written by hand, and drawn by hypothesis."""

from hypothesis import strategies as st

from patr.types import Branch, Status, Task, Tree, Turn


def turn(action_ids, observation_ids=(), logprobs=None) -> Turn:
    return Turn(
        action_ids=tuple(action_ids),
        logprobs=tuple(logprobs or (-1.0,) * len(action_ids)),
        observation_ids=tuple(observation_ids),
        action="",
        reward=0.0,
        finish_reason="stop",
    )


def leaf(path, *turns, reward=0.0, status=Status.DONE) -> Branch:
    return Branch(path, turns, status, None if status is Status.ERROR else reward)


def fork(path, *turns) -> Branch:
    return Branch(path, turns, Status.EXPANDED)


def tree(prompt_ids, *branches, task="t", group="keep_all") -> Tree:
    return Tree(Task(task), tuple(prompt_ids), branches, group=group)


@st.composite
def trees(draw, vocab_size=61, max_depth=3) -> Tree:
    """Any tree a controller could leave: uneven depth and branching, pruned and failed leaves, leaves that took no
    turn of their own, equal rewards. At most 41 tokens on a path and 12 leaves."""
    ids = st.integers(0, vocab_size - 1)
    # Around the log-probability of a token under a small fresh model, so that ratios fall on both sides of 1.
    logprobs = st.floats(-5.5, -3.0, allow_subnormal=False)
    branches = []

    def grow(path, depth):
        turns = []
        for _ in range(draw(st.integers(0 if depth > 1 else 1, 2))):
            action = draw(st.lists(st.tuples(ids, logprobs), min_size=1, max_size=4))
            observation = draw(st.lists(ids, max_size=2))
            turns.append(turn([i for i, _ in action], observation, [x for _, x in action]))
        if depth < max_depth and draw(st.booleans()):
            branches.append(fork(path, *turns))
            for child in range(draw(st.integers(1, 2))):
                grow((*path, child), depth + 1)
        else:
            status = draw(st.sampled_from([Status.DONE, Status.DONE, Status.PRUNED, Status.LENGTH, Status.ERROR]))
            branches.append(leaf(path, *turns, reward=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])), status=status))

    prompt = draw(st.lists(ids, min_size=1, max_size=5))
    for initial in range(draw(st.integers(1, 3))):
        grow((initial,), 1)
    return tree(prompt, *branches, group=draw(st.sampled_from(["keep_all", "best_n"])))
