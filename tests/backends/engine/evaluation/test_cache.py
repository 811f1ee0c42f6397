"""InferenceCache: what was kept, and what follows from it, on one rank and on several."""

import pytest
import torch
from toys.nets import Net, Points, made_factory, sharded_net
from toys.ranks import on_ranks, results_of


def keep_and_go_on(num_items):
    """The inputs that were kept, and what follows from them, on the first rank."""
    factory = made_factory()
    x, _ = Points(n=num_items, batch_size=2)()
    out = Net()(x=x)
    kept = factory.infer([x], cache=True, verbose=False)
    followed = factory.infer([out], use_cache=True, verbose=False)
    again = factory.infer([out], verbose=False)
    return None if kept is None else (torch.cat(kept[0]).tolist(), followed[0], again[0])


@pytest.mark.parametrize("num_items", [1, 6])
def test_going_on_from_what_was_kept_gives_what_the_whole_dag_gives(num_items):
    (kept, followed, again), nothing = results_of(2, keep_and_go_on, num_items)
    assert nothing is None
    assert kept == Points(n=num_items).x.tolist()
    assert len(followed) == len(again)
    assert all(map(torch.equal, followed, again))


def keep_of_sharded(num_items, goes_on):
    factory = made_factory(shard_weights=True)
    net = sharded_net(factory)
    x, _ = Points(n=num_items, batch_size=2)()
    out = net(x=x)
    kept = factory.infer([x, out], cache=True, verbose=False)
    further = net(x=out.producer_args["x"]) if goes_on else out
    followed = factory.infer([further], use_cache=True, verbose=False)
    return None if kept is None else (kept[1], followed[0])


def test_what_sharded_modules_gave_is_kept_without_the_batches_that_only_ran_along():
    (kept, followed), nothing = results_of(2, keep_of_sharded, 6, False)
    assert nothing is None
    assert [len(batch) for batch in kept] == [2, 2, 2]
    assert all(map(torch.equal, kept, followed))


def test_sharded_modules_refuse_to_go_on_from_what_was_kept_on_all_ranks():
    for finished in on_ranks(2, keep_of_sharded, 6, True):
        assert finished.code == 2
        assert finished.err.endswith(
            "UsageError: infer: use_cache cannot run modules whose weights are divided among the ranks; "
            "infer these wires without use_cache\n"
        )
