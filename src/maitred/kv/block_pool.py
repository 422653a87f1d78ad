"""BlockPool: KV memory that remembers block by block, and evicts the least recently used block first (vLLM).

    free list:  [12 blank] [run of 8] [run of 31] [5 blank] ...
                 next to go                        released last

Released blocks join the end of the free list, the end of a sequence before its beginning, and are taken from its front when
room is needed. Only then do they lose their content; a block that is asked for again leaves the free list, whichever request
used it before. A blank block has no known content and goes first of all.

Blocks that were committed together share their fate but for their end, so they are kept as a *run*: a sequence of block hashes,
found by the first of them. A lock on a part of a run splits it. A lock on a block is a lock on all blocks before it, which are
released after it, so what is cached of a prompt is always its beginning. Blank blocks are only counted.

Two sequences may compute the same prefix at the same time. Then there are two copies of it, and the one that was committed
first answers for both until it is evicted. (In BLIS's cache the last one answers, and the prefix is forgotten with either:
`compat.blis.block_pool`.)

Example: a prompt of the blocks 1, 2, 3 is committed and released in a pool of 5 blocks. The free list is

    [2 blank] [run 1 2 3]

and `reserve(3)` takes the 2 blank blocks and the end of the run, block 3. A prompt 1, 2, 4 then finds 2 cached blocks.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

from maitred.core.errors import InvariantError
from maitred.kv.block_runs import BlockRun, FreeExtent, RunLock, current_runs, match_end
from maitred.kv.key_ranges import KeyRanges, join_keys, part_of
from maitred.kv.prefix_cache import PrefixCache, PrefixHit

_MANY_RUNS: Final = 4
"""Runs of one lock, beyond which those that become free are merged. Two or three are the rule where prompts share a beginning
and then part, and merging them would only cost the next prompt a split."""


FreeListEntry: TypeAlias = BlockRun | FreeExtent


class BlockPool(PrefixCache[RunLock]):
    """The KV blocks of one instance. See `PrefixCache` for the methods."""

    is_blockwise = True

    def __init__(self, total: int, block_size: int) -> None:
        super().__init__(total, block_size)
        self._num_referenced = 0
        self._free_list: OrderedDict[FreeListEntry, None] = OrderedDict({FreeExtent(total): None})
        self._runs_by_first_hash: dict[int, BlockRun] = {}
        """The run that answers for the block of this hash, and begins with it."""
        self._duplicates: dict[int, list[BlockRun]] = {}
        """Further copies of a block by its hash, as runs of one block, in the order in which they were committed."""
        self._cached_hashes: set[int] | None = None
        """All cached blocks, once a single one has been asked for."""
        self._num_splits = 0
        """Runs that were split while they were locked."""

    @property
    def evictable(self) -> int:
        self.apply_evictions()
        return sum(len(entry.block_hashes) for entry in self._free_list if isinstance(entry, BlockRun))

    @property
    def free_uncached(self) -> int:
        """Blank blocks at the front of the free list."""
        self.apply_evictions()
        # Each request that ends leaves an extent. Those at the front become one here, so that none is counted twice.
        extents: list[FreeExtent] = []
        for entry in self._free_list:
            if isinstance(entry, BlockRun):
                break
            extents.append(entry)
        if not extents:
            return 0
        first = extents[0]
        for extent in extents[1:]:
            first.blocks += extent.blocks
            del self._free_list[extent]
        return first.blocks

    @property
    def referenced(self) -> int:
        return self._num_referenced

    def contains(self, block_hash: int) -> bool:
        self.apply_evictions()
        # Made when it is first needed: only queues that order by the cache ask for single blocks, and the set costs an update
        # for each block that is committed or evicted.
        if self._cached_hashes is None:
            self._cached_hashes = {each for run in self._runs_by_first_hash.values() for each in run.block_hashes}
        return block_hash in self._cached_hashes

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        self.apply_evictions()
        return self._match_length(block_hashes)

    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        return self.probe(block_hashes).num_unreferenced

    def probe(self, block_hashes: Sequence[int]) -> PrefixHit:
        if self._pending_evictions:
            self.apply_evictions()
        index, position, end, unreferenced = self._runs_by_first_hash, 0, len(block_hashes), 0
        # What is cached of a prompt is its beginning, so one look-up for each run will do instead of one for each block.
        while position < end and (run := index.get(block_hashes[position])) is not None:
            after = match_end(run.block_hashes, block_hashes, position)
            if not run.num_locks:
                unreferenced += after - position
            position = after
        return PrefixHit(position, unreferenced)

    def num_held_by_alone(self, locks: Sequence[RunLock]) -> int:
        counts = Counter([run for lock in locks for run in current_runs(lock)])
        return sum([len(run.block_hashes) for run, count in counts.items() if count == run.num_locks])

    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> RunLock:
        held, free_list, committed = [], self._free_list, 0
        for run in self._matched_runs(block_hashes):
            blocks = len(run.block_hashes)
            if not run.num_locks:
                free_list.pop(run, None)
                self.free -= blocks
                self._num_referenced += blocks
            run.num_locks += 1
            held.append((run, blocks))
            committed += blocks
        lock = RunLock(committed, held, self._num_splits)
        self._locks.add(lock)
        return lock

    def commit_blocks(self, lock: RunLock, block_hashes: Sequence[int]) -> None:
        count = len(block_hashes)
        self._take_private(lock, count)
        lock.num_committed += count
        self._num_referenced += count
        index, last = self._runs_by_first_hash, lock.runs[-1][0] if lock.runs else None
        is_copy = last is not None and index.get(last.first_hash) is not last
        if is_copy:
            copied = self._num_cached_after_copy(lock, block_hashes)
        else:  # mostly nobody else has computed what comes next
            copied = self._match_length(block_hashes) if count and block_hashes[0] in index else 0
        fresh = self._commit_copies(lock, block_hashes, copied) if copied else block_hashes
        if copied == count:
            return
        if is_copy or copied or not self._extend_last_run(lock, fresh, count):
            run = BlockRun(fresh if isinstance(fresh, KeyRanges) else list(fresh), 1)
            index[run.first_hash] = run
            lock.runs.append((run, count - copied))
        if self._cached_hashes is not None:
            self._cached_hashes.update(fresh)
        if self._listeners:
            self._notify_stored(fresh)

    def _commit_copies(self, lock: RunLock, block_hashes: Sequence[int], copied: int) -> Sequence[int]:
        """Commit the first `copied` blocks, which are cached already, and return the hashes of the others."""
        # Each copy is a run of its own, because it takes over alone when the block that answers for both is evicted.
        for block_hash in block_hashes[:copied]:
            run = BlockRun([block_hash], 1)
            self._duplicates.setdefault(block_hash, []).append(run)
            lock.runs.append((run, 1))
        return block_hashes[copied:]

    def release(self, lock: RunLock) -> None:
        self._release(lock, 0)

    def release_private(self, lock: RunLock, num_full: int) -> None:
        """Free all blocks of `lock`; see the base. Content that no request asks for is only counted, without its hashes."""
        self._take_private(lock, num_full)
        self._release(lock, num_full)

    def evict(self, blocks: int) -> int:
        self.apply_evictions()
        evicted = 0
        for entry in [entry for entry in self._free_list if isinstance(entry, BlockRun)]:
            if evicted < blocks:
                evicted += self._evict_tail(entry, blocks - evicted)
        if evicted:
            self._prepend_free(evicted)
        return evicted

    def apply_evictions(self) -> None:
        pending, free_list = self._pending_evictions, self._free_list
        if not pending:
            return
        self._pending_evictions = 0
        while pending:
            entry = next(iter(free_list))
            if isinstance(entry, BlockRun):
                pending -= self._evict_tail(entry, pending)
            elif entry.blocks > pending:
                entry.blocks -= pending
                return
            else:
                pending -= entry.blocks
                del free_list[entry]

    def check(self) -> None:
        self.apply_evictions()
        private = sum(lock.num_private for lock in self._locks) + self.num_unassigned
        listed = sum(entry.blocks if isinstance(entry, FreeExtent) else len(entry.block_hashes) for entry in self._free_list)
        if listed != self.free or self.free + self._num_referenced + private != self.total:
            shares = f"{self.free} free ({listed} listed) + {self._num_referenced} shared + {private} private"
            raise InvariantError(f"KV blocks: {shares} != {self.total}")
        locks: dict[BlockRun, int] = {}
        for lock in self._locks:
            for run in current_runs(lock):
                locks[run] = locks.get(run, 0) + 1
            if sum(blocks for _, blocks in lock.runs) != lock.num_committed:
                raise InvariantError("KV blocks: a lock does not hold what it committed")
        held = sum(len(run.block_hashes) for run in locks)
        if held != self._num_referenced or any(run.num_locks != count for run, count in locks.items()):
            raise InvariantError("KV blocks: references are not what the locks hold")
        runs = [*self._runs_by_first_hash.values(), *(run for copies in self._duplicates.values() for run in copies)]
        if {entry for entry in self._free_list if isinstance(entry, BlockRun)} ^ set(runs) != locks.keys():
            raise InvariantError("KV blocks: a run is neither held nor free, or both")
        if any(not first == run.first_hash == run.block_hashes[0] for first, run in self._runs_by_first_hash.items()) or any(
            list(run.block_hashes) != [block_hash] for block_hash, copies in self._duplicates.items() for run in copies
        ):
            raise InvariantError("KV blocks: the index is not what the runs say")

    def _extend_last_run(self, lock: RunLock, block_hashes: Sequence[int], count: int) -> bool:
        """Put `count` blocks that `lock` commits behind those that it has committed last, which are no copy, if it alone holds
        them. Return whether that was possible. A long prompt is committed chunk by chunk, and is one run all the same."""
        # A run that was found is left as it is: other prompts may have it in common, and would only split it again.
        if len(lock.runs) <= lock.num_found:
            return False
        run, blocks = lock.runs[-1]
        before = run.block_hashes
        if run.num_locks > 1 or blocks != len(before):
            return False
        if type(before) is KeyRanges and type(block_hashes) is KeyRanges:
            run.block_hashes = before.joined_in_chain(block_hashes)
        elif isinstance(before, list):
            before.extend(block_hashes)
        else:
            run.block_hashes = join_keys([before, block_hashes])
        lock.runs[-1] = (run, blocks + count)
        return True

    def _num_cached_after_copy(self, lock: RunLock, block_hashes: Sequence[int]) -> int:
        """Return how many of `block_hashes`, which continue the committed blocks of `lock`, another lock has committed, if the
        last of these is a copy: the run that answers for that block may go on beyond it, so match from the beginning."""
        before = [run.block_hashes for run in current_runs(lock)]
        return self._match_length(join_keys([*before, block_hashes])) - sum(map(len, before))

    def _match_length(self, block_hashes: Sequence[int]) -> int:
        """Return how many leading blocks of `block_hashes` are cached, evictions that are pending not applied."""
        index, position, end = self._runs_by_first_hash, 0, len(block_hashes)
        while position < end and (run := index.get(block_hashes[position])) is not None:
            position = match_end(run.block_hashes, block_hashes, position)
        return position

    def _matched_runs(self, block_hashes: Sequence[int]) -> list[BlockRun]:
        """Return the runs that make up the cached prefix of `block_hashes` exactly, after splitting the last one if need be."""
        if self._pending_evictions:
            self.apply_evictions()
        index, position, end, runs = self._runs_by_first_hash, 0, len(block_hashes), []
        while position < end and (run := index.get(block_hashes[position])) is not None:
            after = match_end(run.block_hashes, block_hashes, position)
            if after - position < len(run.block_hashes):
                run = self._split(run, after - position)
            runs.append(run)
            position = after
        return runs

    def _split(self, run: BlockRun, blocks: int) -> BlockRun:
        """Return the first `blocks` blocks of `run` as a run of their own. Of a free run the rest keeps its place in the free
        list, and the caller puts the returned run there or locks it."""
        head, tail = run.block_hashes[:blocks], run.block_hashes[blocks:]
        # The object stays with the part that is referred to: of a locked run that is the first part, from which locks reach
        # the rest by `split_rest`; of a free run it is the rest, which has a place in the free list.
        if run.num_locks:
            self._num_splits += 1
            run.block_hashes = head
            rest = BlockRun(tail, run.num_locks)
            rest.split_rest, run.split_rest = run.split_rest, rest
            self._runs_by_first_hash[rest.first_hash] = rest
            return run
        first = self._runs_by_first_hash[run.first_hash] = BlockRun(head, 0)
        run.block_hashes, run.first_hash = tail, tail[0]
        self._runs_by_first_hash[run.first_hash] = run
        return first

    def _release(self, lock: RunLock, num_full: int) -> None:
        if self._pending_evictions:
            self.apply_evictions()  # earlier reservations are not taken from the blocks that are released now
        self._locks.remove(lock)
        # Nothing is lost with blocks without content, so they go first of all (vLLM 0.32, by its recorded schedules). The
        # others are released from the end of the sequence to its beginning, so the full ones of the answer precede the
        # committed ones of the prompt.
        if lock.num_private:
            self._prepend_free(lock.num_private)
        if num_full:
            self._free_list[FreeExtent(num_full)] = None
        free = lock.num_private + num_full
        # Mostly no run has been split since the lock was made, and its list is still right.
        runs = [run for run, _ in lock.runs] if lock.num_splits == self._num_splits else current_runs(lock)
        for run in reversed(runs):
            run.num_locks -= 1
            if not run.num_locks:
                run.split_rest = None
                self._free_list[run] = None
                blocks = len(run.block_hashes)
                self._num_referenced -= blocks
                free += blocks
        self.free += free
        # A session adds runs with each turn. Those that are free now are neighbours in the free list, so one run of them all is
        # evicted from its end as they would be; only the next turn costs less.
        if len(runs) > _MANY_RUNS:
            self._merge_free(runs)

    def _merge_free(self, runs: list[BlockRun]) -> None:
        """Merge the last of `runs`, those of a lock that was released just now, into one as far as they are free."""
        # Up to the last one that is locked: a lock that holds copies of its first blocks may hold one in the middle.
        first = len(runs)
        while first and not runs[first - 1].num_locks:
            first -= 1
        merged, index = runs[first:], self._runs_by_first_hash
        # A copy that does not answer for its block stays alone; see `commit_blocks`.
        if len(merged) < 2 or any(index.get(run.first_hash) is not run for run in merged):
            return
        whole = join_keys([run.block_hashes for run in merged])
        for run in merged[1:]:
            del index[run.first_hash]
            del self._free_list[run]
        merged[0].block_hashes = whole

    def _evict_tail(self, run: BlockRun, blocks: int) -> int:
        """Evict the last `blocks` blocks of `run`, which is free, or all it has. Return how many."""
        block_hashes, index = run.block_hashes, self._runs_by_first_hash
        num_evicted = len(block_hashes)
        left = num_evicted - blocks if num_evicted > blocks else 0
        num_evicted -= left
        # A copy that does not answer for its block is unknown to listeners: it goes without a word.
        answers = index.get(run.first_hash) is run
        # Mostly nothing depends on the single blocks that are gone.
        is_watched = answers and (self._duplicates or self._cached_hashes is not None or self._listeners)
        evicted = part_of(block_hashes, left, left + num_evicted) if is_watched else ()
        if not left:
            del self._free_list[run]
            if answers:
                del index[run.first_hash]
        elif isinstance(block_hashes, list):
            del block_hashes[left:]
        else:
            run.block_hashes = part_of(block_hashes, 0, left)
        if not answers:
            self._drop_duplicate(run.first_hash, run)
        elif is_watched:
            self._tell_of_evicted(evicted)
        return num_evicted

    def _tell_of_evicted(self, evicted: Sequence[int]) -> None:
        """Let copies answer for the blocks `evicted`, and tell the listeners of those that have none."""
        if self._duplicates.keys().isdisjoint(evicted):
            if self._cached_hashes is None and not self._listeners:
                return
            gone = list(evicted)[::-1]
        else:
            gone = [each for each in list(evicted)[::-1] if not self._promote_duplicate(each)]
        if self._cached_hashes is not None:
            self._cached_hashes.difference_update(gone)
        self._notify_removed(gone)

    def _promote_duplicate(self, block_hash: int) -> bool:
        """Let another copy of the block answer for it from now on. Return False if there is none."""
        copies = self._duplicates.get(block_hash)
        if copies is None:
            return False
        self._runs_by_first_hash[block_hash] = copies[0]
        self._drop_duplicate(block_hash, copies[0])
        return True

    def _drop_duplicate(self, block_hash: int, run: BlockRun) -> None:
        """Remove `run` from the further copies of the block."""
        copies = self._duplicates[block_hash]
        copies.remove(run)
        if not copies:
            del self._duplicates[block_hash]

    def _prepend_free(self, blocks: int) -> None:
        """Put `blocks` blank blocks at the front of the free list."""
        first = next(iter(self._free_list), None)
        if isinstance(first, FreeExtent):
            first.blocks += blocks
            return
        blank = FreeExtent(blocks)
        self._free_list[blank] = None
        self._free_list.move_to_end(blank, last=False)
