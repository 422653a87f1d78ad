"""Ranges of keys behave like the list of the same keys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.kv.key_ranges import NO_KEYS, KeyRanges, expand_keys, join_keys, key_ranges, part_of

RANGES = st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 6)).map(lambda pair: range(pair[0], sum(pair))), max_size=6)
"""Empty, adjacent and overlapping ranges too."""
BOUNDS = st.none() | st.integers(-40, 40)
SLICES = st.builds(slice, BOUNDS, BOUNDS, st.none() | st.sampled_from([1, 2, -1, -3]))


def written_out(ranges: list[range]) -> list[int]:
    return [key for each in ranges for key in each]


@st.composite
def keys(draw: st.DrawFn) -> tuple[KeyRanges, list[int]]:
    """Draw ranges, perhaps cut once or twice, and the list of the same keys."""
    drawn = draw(RANGES)
    as_ranges, as_list = key_ranges(drawn), written_out(drawn)
    for _ in range(draw(st.integers(0, 2))):
        bounds = slice(draw(BOUNDS), draw(BOUNDS))
        cut = as_ranges[bounds]
        assert isinstance(cut, KeyRanges)
        as_ranges, as_list = cut, as_list[bounds]
    return as_ranges, as_list


@given(keys(), SLICES)
def test_ranges_read_like_their_list(both: tuple[KeyRanges, list[int]], part: slice) -> None:
    ranges, plain = both
    assert list(ranges) == plain
    assert len(ranges) == len(plain)
    assert list(reversed(ranges)) == plain[::-1]
    assert [ranges[index] for index in range(-len(plain), len(plain))] == plain + plain
    assert list(ranges[part]) == plain[part]
    assert all(not each or each.step == 1 for each in ranges.ranges())
    assert all(one.stop != other.start for one, other in zip(ranges.ranges(), ranges.ranges()[1:], strict=False))


@given(keys(), st.integers(-45, 45))
def test_an_index_beyond_the_ends_is_refused(both: tuple[KeyRanges, list[int]], index: int) -> None:
    ranges, plain = both
    if -len(plain) <= index < len(plain):
        assert ranges[index] == plain[index]
    else:
        with pytest.raises(IndexError):
            ranges[index]


@given(keys(), keys())
def test_equal_ranges_are_those_of_equal_lists(one: tuple[KeyRanges, list[int]], other: tuple[KeyRanges, list[int]]) -> None:
    assert (one[0] == other[0]) is (one[1] == other[1])
    assert (one[0] == other[1]) is (one[1] == other[1])
    assert one[0] == key_ranges([range(key, key + 1) for key in one[1]])


@given(keys(), keys(), st.integers(0, 12))
def test_common_keys_are_counted_up_to_the_first_that_differ(
    one: tuple[KeyRanges, list[int]], other: tuple[KeyRanges, list[int]], offset: int
) -> None:
    for whole in (other, one):
        offset = min(offset, len(whole[1]))
        pairs = list(zip(one[1], whole[1][offset:], strict=False))
        alike = next((at for at, (mine, yours) in enumerate(pairs) if mine != yours), len(pairs))
        assert one[0].num_common(whole[0], offset) == alike


@given(keys(), st.integers(-40, 40), st.integers(-10, 10), st.integers(-10, 40))
def test_a_key_is_found_where_the_list_has_it(both: tuple[KeyRanges, list[int]], key: int, start: int, stop: int) -> None:
    ranges, plain = both
    assert (key in ranges) is (key in plain)
    try:
        expected = plain.index(key, start, stop)
    except ValueError:
        with pytest.raises(ValueError, match="not among"):
            ranges.index(key, start, stop)
    else:
        assert ranges.index(key, start, stop) == expected


@given(st.lists(keys() | st.lists(st.integers(0, 9), max_size=3).map(lambda plain: (plain, plain)), max_size=4))
def test_joined_keys_are_those_of_all_parts(parts: list[tuple[Sequence[int], list[int]]]) -> None:
    assert list(join_keys([part for part, _ in parts])) == [key for _, plain in parts for key in plain]


@given(keys(), st.integers(0, 40))
def test_a_sequence_cut_in_two_and_joined_is_itself(both: tuple[KeyRanges, list[int]], at: int) -> None:
    ranges, plain = both
    head, tail = ranges.head(at), ranges[at:]
    assert isinstance(tail, KeyRanges)
    assert list(head) == plain[:at]
    assert head.joined(tail) == ranges
    assert list(tail.joined(head)) == plain[at:] + plain[:at]


@given(keys(), RANGES)
def test_ranges_that_follow_are_added_at_the_end(both: tuple[KeyRanges, list[int]], ranges: list[range]) -> None:
    assert list(both[0].extended(ranges)) == both[1] + written_out(ranges)


@st.composite
def chains(draw: st.DrawFn) -> list[int]:
    """Draw keys of which none occurs twice, so each stands for all before it."""
    return written_out(draw(st.permutations([range(7), range(7, 12), range(12, 13), range(20, 26), range(26, 31)])))


def made_in_parts(plain: Sequence[int], first: int, end: int, cut: int) -> KeyRanges:
    """Return `plain[first:end]`, in a table of its own that was made of two parts."""
    whole = key_ranges([range(key, key + 1) for key in plain])
    made = ranges_of(whole[first : max(first, cut)]).extended(ranges_of(whole[max(first, cut) :]).ranges())
    return made.head(end - first)


def ranges_of(keys: Sequence[int]) -> KeyRanges:
    assert isinstance(keys, KeyRanges)
    return keys


@given(chains(), st.data())
def test_a_conversation_is_joined_to_the_prompt_that_it_begins_with(plain: list[int], data: st.DataObject) -> None:
    cuts = [data.draw(st.integers(0, len(plain))) for _ in range(3)]
    first, at, end = sorted(cuts)
    start = data.draw(st.integers(0, at))
    prompt = made_in_parts(plain, first, at, data.draw(st.integers(0, len(plain))))
    rest = part_of(made_in_parts(plain, start, len(plain), data.draw(st.integers(0, len(plain)))), at - start, end - start)
    assert isinstance(rest, KeyRanges)
    assert list(rest) == plain[at:end]
    assert list(prompt.joined_in_chain(rest)) == plain[first:end]


@given(chains(), st.data())
def test_common_keys_of_chains_are_counted(plain: list[int], data: st.DataObject) -> None:
    alike = data.draw(st.integers(0, len(plain)))
    other = [*plain[:alike], *range(100, 100 + data.draw(st.integers(0, 40)))]
    first, end = sorted([data.draw(st.integers(0, len(plain))) for _ in range(2)])
    if first < end and first <= len(other):
        run, keys = (key_ranges([range(key, key + 1) for key in each]) for each in (plain[first:end], other))
        assert run.num_common_in_chain(keys, first) == max(0, min(alike, end) - first)


@given(keys(), st.integers(1, 5))
def test_each_key_expands_into_those_of_its_parts(both: tuple[KeyRanges, list[int]], parts: int) -> None:
    ranges, plain = both
    keys = [key * parts + part for key in plain for part in range(parts)]
    assert list(ranges.expanded(parts)) == keys
    assert list(ranges.expanded(parts, 9)) == keys[:9]


def test_long_prompts_with_few_keys_of_other_kinds_stay_ranges() -> None:
    prompt = key_ranges([range(5_000)])
    joined = join_keys([prompt, [7, 77, 777]])
    assert isinstance(joined, KeyRanges)
    assert (len(joined), joined[4_999], joined[5_001], len(joined.ranges())) == (5_003, 4_999, 77, 4)
    assert isinstance(join_keys([prompt[:8], [7, 77]]), list)
    assert NO_KEYS.joined(prompt) == prompt
    with pytest.raises(TypeError):
        hash(prompt)


@given(st.lists(st.integers(0, 60), max_size=30), st.sampled_from([1, 4, 32]))
def test_ids_expand_into_the_keys_of_their_parts(ids: list[int], parts: int) -> None:
    keys = [key * parts + part for key in ids for part in range(parts)]
    assert list(expand_keys(ids, parts)) == keys
    assert list(expand_keys(ids, parts, 40)) == keys[:40]


def test_counted_ids_of_a_long_prompt_become_ranges_and_scattered_ones_with_small_parts_a_list() -> None:
    # A prompt of 12,288 tokens that shares its first two blocks of 512, in blocks of 16.
    long = expand_keys([0, 1, *range(70, 92)], 32)
    assert isinstance(long, KeyRanges)
    assert long.ranges() == [range(64), range(70 * 32, 92 * 32)]
    assert isinstance(expand_keys(list(range(0, 300, 2)), 4), list)
