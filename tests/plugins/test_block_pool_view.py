"""vLLM's block pool as the prefix cache that policies look at."""

from __future__ import annotations

from random import Random

from fake_vllm import FakeBlockPool, FakeEngine, FakeRequest, FakeScheduler, block_key

from maitred.plugins.vllm.block_pool_view import BlockPoolView
from maitred.plugins.vllm.engine_request import describe_request
from maitred.plugins.vllm.policy_queue import PolicyQueue
from maitred.queueing import SCHEDULERS


class Listener:
    """A `PrefixCacheListener` that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_stored(self, block_hash: int) -> None:
        self.heard.append(("stored", block_hash))

    def on_removed(self, block_hash: int) -> None:
        self.heard.append(("removed", block_hash))


def made_view(block_size: int = 16) -> tuple[BlockPoolView, FakeBlockPool]:
    pool = FakeBlockPool()
    return BlockPoolView(pool, 0, block_size), pool


def prompt(blocks: str, tokens: int = 1000) -> FakeRequest:
    return FakeRequest(blocks, tokens, blocks=blocks)


def test_a_prefix_ends_at_the_first_block_that_is_not_cached() -> None:
    view, pool = made_view()
    for block_id, prefix in enumerate(("a", "ab", "abcd")):
        pool.store(prefix, block_id)
    request = describe_request(prompt("abcd"), 0, 0, 16)
    hashes = view.block_hashes(request)

    assert [view.contains(block_hash) for block_hash in hashes] == [True, True, False, True]
    assert view.num_cached_blocks(hashes) == 2
    assert view.num_cached_tokens(request) == 32
    assert view.num_cached_tokens(describe_request(prompt("xy"), 1, 0, 16)) == 0
    assert view.block_hashes(describe_request(prompt("ab"), 2, 0, None)) == ()


def test_a_kv_block_may_have_several_hashes() -> None:
    view, pool = made_view(block_size=32)
    pool.store("ab", 0)
    assert view.num_cached_tokens(describe_request(prompt("abcd"), 0, 0, 16)) == 32


def test_what_comes_and_goes_is_told_once() -> None:
    """Block a is there twice for a while, and in another KV cache group."""
    view, pool = made_view()
    listener, a = Listener(), int.from_bytes(block_key("a"))
    view.subscribe(listener)
    pool.store("a", 1)
    pool.store("a", 2)
    pool.store("a", 3, group_id=1)
    pool.evict(1)
    assert listener.heard == [("stored", a)]
    pool.evict(3)
    pool.evict(2)
    assert listener.heard == [("stored", a), ("removed", a)]


def test_vllm_finds_what_it_stored() -> None:
    _, pool = made_view()
    pool.store("a", 1)
    key = block_key("a") + bytes(4)
    assert pool.cached_block_hash_to_block.get_one_block(key) is pool.blocks[1]
    assert pool.cached_block_hash_to_block.contain(key, 1)
    assert not pool.cached_block_hash_to_block.contain(key, 2)
    assert len(pool.cached_block_hash_to_block) == 1
    assert pool.cached_block_hash_to_block.pop(key, 2) is None
    assert pool.cached_block_hash_to_block.pop(key, 1) is pool.blocks[1]


def test_a_cache_that_was_emptied_is_followed_on() -> None:
    view, pool = made_view()
    listener, a, b = Listener(), *(int.from_bytes(block_key(letter)) for letter in "ab")
    view.subscribe(listener)
    pool.store("a", 1)
    were_cached = view.cached_keys()
    pool.reset()
    view.on_reset(were_cached)
    pool.store("b", 1)

    assert listener.heard == [("stored", a), ("removed", a), ("stored", b)]


def test_what_a_request_stores_on_its_way_in_is_not_found_by_itself() -> None:
    """vLLM stores the blocks of a prompt before it pops the request, and policies ask then what the cache had."""
    view, pool = made_view()
    pool.store("a", 1)
    request = describe_request(prompt("ab"), 0, 0, 16)
    view.on_head_shown()
    pool.store("ab", 2)
    assert view.num_cached_tokens(request) == 16
    view.on_head_settled()
    assert view.num_cached_tokens(request) == 32


def test_what_running_requests_store_between_two_steps_is_found() -> None:
    view, pool = made_view()
    queue = PolicyQueue(SCHEDULERS.create("vtc").make_queue(view, Random(0)), FakeEngine(pool, view))
    queue.add_request(prompt("ab"))
    queue.begin_step()
    queue.peek_request()
    queue.end_step({})
    pool.store("a", 1)
    assert view.num_cached_tokens(describe_request(prompt("ab"), 0, 0, 16)) == 16


def test_a_cache_aware_policy_follows_the_block_pool() -> None:
    """The prompt of which most is cached goes first, also when that changes while both wait."""
    view, pool = made_view()
    engine = FakeEngine(pool, view)
    queue = PolicyQueue(SCHEDULERS.create("lpm").make_queue(view, Random(0)), engine)
    scheduler = FakeScheduler(queue, engine, max_num_seqs=1)
    pool.store("b", 1)
    queue.add_request(prompt("aaaa"))
    queue.add_request(prompt("bbbb"))
    queue.add_request(prompt("cccc"))
    for block_id, prefix in enumerate(("c", "cc", "ccc")):
        pool.store(prefix, 10 + block_id)
    pool.evict(1)
    for _ in range(3):
        scheduler.step()

    assert scheduler.finished == ["cccc", "aaaa", "bbbb"]
