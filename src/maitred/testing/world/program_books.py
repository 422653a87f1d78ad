"""Program books: which agent programs have memory, and which wait for it, kept once more from the log of decisions.

- a request asks for a slot only while its program has memory: one that waits for memory holds no slot
- what has begun in the programs ends there
- no request waits for memory for longer than `max_wait_secs`
- nobody waits for memory that nobody uses: not while every program that has some works with its tools, for long enough that it
  is taken from them
- a program that has just come takes no memory while others of its model wait for some
- a program's place is at one engine: it gets one only when it has none, and its requests go there and to no other
- an engine that is full takes no further program, neither a new one nor one that has waited
- nobody passes the program whose turn it is, once that has waited for `patience_secs`, to an engine where it would have fitted
  for certain, or which has most room for certain, and so is kept for it. With one engine that is each who passes it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, TypeAlias

import msgspec

from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, Micros, from_seconds
from maitred.programs.config import ProgramsConfig

MAX_LATE: Final = 100 * MILLISECOND
"""How late a decision may be that time alone leads to."""
_FIRST_CHARACTERS_PER_TOKEN: Final = 5
"""What a gateway takes for true as long as no answer has told it more."""
_FEWEST_CHARACTERS_PER_TOKEN: Final = 4
"""Fewer than any has, so what is counted of a prompt is more than it takes."""
_MOST_ANSWERED: Final = 100
"""Tokens, more than any answer of a world has."""
Place: TypeAlias = tuple[Micros, int]
"""From when on a request may be at an engine, and its number."""


@dataclass(slots=True)
class _Program:
    """A program that is known."""

    model: str
    tenant: str
    priority_class: PriorityClass
    place: int | None = None
    """The engine that has its memory."""
    under_way: dict[int, int] = field(default_factory=dict)
    """Its requests that may be there, each with tokens that it takes at least, without its prompt."""
    characters: dict[int, int] = field(default_factory=dict)
    """Of the prompts of these."""
    most_tokens: int = 0
    """More than any of its requests has taken so far, or will take, with its answer."""
    waits: dict[int, Micros] = field(default_factory=dict)
    """Its requests that wait, each with the instant from which on it does."""

    @property
    def has_place(self) -> bool:
        return self.place is not None

    @property
    def waits_since(self) -> Micros:
        return min(self.waits.values())

    @property
    def most_needed(self) -> int:
        """More tokens than it takes."""
        return self.most_tokens * max(1, len(self.under_way), len(self.waits))


class ProgramBooks:
    """The books of one life of a gateway."""

    def __init__(self, is_excused: Callable[[Micros, Micros], bool], places: defaultdict[str, list[Place]]) -> None:
        """`is_excused` says whether time has passed between two instants in which no program ran. `places` gets where each
        request was sent, by its mark."""
        self._is_excused = is_excused
        self._places = places
        self._memory: dict[int, int | None] = {}
        """The tokens that each engine has for programs, with what they share; None: unknown."""
        self._capacity: dict[int, int | None] = {}
        """The same without what they share."""
        self._config = ProgramsConfig()
        self._begun: dict[int, Any] = {}
        """The requests that have begun and not ended, as they came."""
        self._most_characters: dict[tuple[str, str], float] = {}
        """The most characters of a body for each token that an answer to a tenant of a model has told; a gateway learns from
        each, so it counts fewer tokens of a prompt by none."""
        self._serials: dict[int, int] = {}
        """The programs of those that were decided on."""
        self._granted: set[int] = set()
        self._programs: dict[int, _Program] = {}
        self._up: dict[int, list[str]] = {}
        """The backends that may have programs, each with its models."""
        self._quiet_since: Micros = 0
        """Since when no request is under way, and backends and places have been as they are."""

    def read(self, lines: Iterable[bytes], *, may_lack_lines: bool) -> Iterator[str]:
        """Yield what does not hold of a log, of which the last lines may be missing."""
        for line in lines:
            entry = msgspec.json.decode(line)
            if entry["room"] == "programs" and "raised" not in entry:
                if (decision := entry.get("decision")) is not None:
                    yield from self._on_decision(decision)
                elif "input" in entry:
                    yield from self._check_waits(entry["at"])
                    self._on_input(entry)
            elif entry["room"] == "admission" and entry.get("input") == "submit" and self._lacks_memory(entry["id"]):
                yield f"{entry.get('client_id')} asks for a slot, and its program waits for memory"
        if not may_lack_lines:
            for number in self._begun:
                yield f"request {number} is left in its program"

    def _lacks_memory(self, number: int) -> bool:
        return number in self._begun and number not in self._granted

    def _on_input(self, entry: Mapping[str, Any]) -> None:
        kind = entry["input"]
        if kind in ("open", "reconfigure"):
            self._config = msgspec.convert(entry["config"], ProgramsConfig)
        elif kind == "begin":
            self._begun[entry["request"]["id"]] = entry["request"]
        elif kind == "progress":
            program = self._programs.get(self._serials.get(entry["id"], -1))
            if program is not None and entry["id"] in program.under_way:
                program.under_way[entry["id"]] += entry["tokens"]
        elif kind == "end":
            self._learn(self._begun.get(entry["id"]), entry["usage"])
            self._forget(entry["id"], entry["at"])
        elif kind == "set_backend":
            capacity = entry["capacity"]
            self._memory[entry["index"]] = None if capacity is None else capacity + entry["shared_tokens"]
            self._capacity[entry["index"]] = capacity
            models = entry["models"] if entry["status"] == "up" else []
            if self._up.get(entry["index"]) != models:
                self._up[entry["index"]], self._quiet_since = models, entry["at"]

    def _learn(self, asked: Any, usage: Any) -> None:
        if asked is not None and usage is not None and usage["prompt_tokens"]:
            of = asked["model"], asked["tenant"]
            known = self._most_characters.get(of, _FIRST_CHARACTERS_PER_TOKEN)
            self._most_characters[of] = max(known, asked["characters"] / usage["prompt_tokens"])

    def _forget(self, number: int, at: Micros) -> None:
        """Forget a request that has ended."""
        self._begun.pop(number, None)
        self._granted.discard(number)
        if not self._granted:
            self._quiet_since = at
        if (program := self._programs.get(self._serials.pop(number, -1))) is not None:
            program.waits.pop(number, None)
            program.under_way.pop(number, None)

    def _on_decision(self, decision: Mapping[str, Any]) -> Iterator[str]:
        serial, action, reason = decision["program"], decision["action"], decision["reason"]
        number, at = decision["request"], decision["at"]
        asked = self._begun.get(number)
        if asked is not None and action in ("grant", "wait", "reject"):
            program = self._program(serial, number, asked)
            if action == "grant":
                yield from self._check_place(program, None if reason == "placed" else decision["backend"], decision)
                program.place = decision["backend"]
                program.waits.pop(number, None)
                program.under_way[number], program.characters[number] = 0, asked["characters"]
                self._granted.add(number)
                self._places[asked["client_id"]].append((at, decision["backend"]))
                if reason == "placed":
                    yield from self._check_newcomer(program, number)
                    yield from self._check_memory(decision)
            elif action == "wait":
                program.waits[number] = at
                program.under_way.pop(number, None)
                self._granted.discard(number)
            else:
                program.waits.pop(number, None)
        elif action == "end":
            self._quiet_since = at
            self._programs.pop(serial, None)
        elif (known := self._programs.get(serial)) is not None and action in ("pause", "resume"):
            if reason == "room":
                yield from self._check_turn(known, decision["backend"], at)
            yield from self._check_place(known, None if action == "resume" else decision["backend"], decision)
            known.place, self._quiet_since = decision["backend"] if action == "resume" else None, at
            if reason == "room":
                yield from self._check_memory(decision)

    def _program(self, serial: int, number: int, asked: Mapping[str, Any]) -> _Program:
        priority_class = PriorityClass(asked["priority_class"])
        program = self._programs.get(serial)
        if program is None:
            program = self._programs[serial] = _Program(asked["model"], asked["tenant"], priority_class)
        if self._serials.get(number) != serial:
            self._serials[number], program.priority_class = serial, priority_class
            tokens = asked["characters"] // _FEWEST_CHARACTERS_PER_TOKEN + _MOST_ANSWERED
            program.most_tokens = max(program.most_tokens, tokens)
        return program

    def _waiting(self, model: str) -> list[_Program]:
        """Return the programs of a model that have no place, and requests that wait for one."""
        return [each for each in self._programs.values() if each.waits and not each.has_place and each.model == model]

    def _check_newcomer(self, program: _Program, number: int) -> Iterator[str]:
        others = sum(each is not program for each in self._waiting(program.model))
        if others:
            yield f"request {number} gets memory as it comes, and {others} programs wait for some"

    def _check_place(self, program: _Program, place: int | None, decision: Mapping[str, Any]) -> Iterator[str]:
        """Yield whether the place of a program is another one than a decision says that it has."""
        if program.place != place:
            yield f"program {decision['program']} has its place at {program.place}, and not at {place}: {decision}"

    def _check_memory(self, decision: Mapping[str, Any]) -> Iterator[str]:
        """Yield whether an engine that has taken a program is more than full, by the least that the programs there take."""
        place, there = decision["backend"], [each for each in self._programs.values() if each.place == decision["backend"]]
        memory = self._memory.get(place)
        used = sum(map(self._least_used, there))
        if memory is not None and used > memory:
            yield f"engine {place} takes program {decision['program']}, and its programs take {used} tokens of {memory}"

    def _check_turn(self, program: _Program, place: int, at: Micros) -> Iterator[str]:
        """Yield whether a program that is resumed at an engine passes the one whose turn it is."""
        waiting = [program, *(each for each in self._waiting(program.model) if each is not program)]
        highest = max((each.priority_class for each in waiting if each.waits), default=None)
        since = at - from_seconds(self._config.patience_secs)
        overdue = [p for p in waiting if p.waits and p.priority_class is highest and p.waits_since <= since]
        if self._config.mode != "tr" or not overdue:
            return
        # Of several tenants, the turn is that of the one that holds least, which is not known here.
        turns = [min((p for p in overdue if p.tenant == name), key=_age) for name in {p.tenant for p in overdue}]
        is_kept = self._has_most_room(place, program)
        least = self._least_room(place, program)
        if program not in turns and all(is_kept or self._need(turn) <= least for turn in turns):
            others = [(list(turn.waits), turn.waits_since) for turn in turns]
            yield f"requests {list(program.waits)} get memory at engine {place}, and it is the turn of one of {others}"

    def _need(self, program: _Program) -> int:
        return program.most_needed + self._config.buffer_tokens

    def _least_room(self, place: int, but: _Program) -> float:
        """Return fewer tokens than there are left for a program at an engine, beside all but one."""
        capacity, there = self._capacity.get(place), [p for p in self._programs.values() if p.place == place and p is not but]
        if capacity is None:
            return 0.0
        headroom = self._config.headroom * capacity if there else 0.0
        return capacity - headroom - sum(map(self._need, there))

    def _most_room(self, place: int) -> float:
        """Return more tokens than there are left at an engine."""
        memory, there = self._memory.get(place), [p for p in self._programs.values() if p.place == place]
        if memory is None:
            return inf
        return memory - sum(map(self._least_used, there))

    def _least_used(self, program: _Program) -> int:
        """Return fewer tokens than a program takes at its engine."""
        ratio = self._most_characters.get((program.model, program.tenant), _FIRST_CHARACTERS_PER_TOKEN)
        prompts = sum(int(program.characters[number] / ratio) for number in program.under_way)
        return self._config.buffer_tokens + prompts + sum(program.under_way.values())

    def _has_most_room(self, place: int, program: _Program) -> bool:
        """Return whether an engine has most room for certain, of those that may serve the model of a program."""
        others = [other for other, models in self._up.items() if other != place and program.model in models]
        least = self._least_room(place, program)
        return all(self._most_room(other) < least for other in others)

    def _check_waits(self, now: Micros) -> Iterator[str]:
        """Yield who waits too long at an instant."""
        config = self._config
        longest = from_seconds(config.max_wait_secs) + MAX_LATE
        is_empty = not any(program.has_place for program in self._programs.values())
        kept = 0.0 if is_empty else max(config.displace_secs, config.patience_secs)
        quiet = from_seconds(kept + 2 * config.scheduler_interval_secs) + MAX_LATE
        for program in self._programs.values():
            for number, since in list(program.waits.items()):
                if now - since > longest and not self._is_excused(since, now):
                    yield f"request {number} has waited for memory for {now - since} us"
                    del program.waits[number]
            if program.waits and not program.has_place and not self._granted and self._may_have_all(program):
                since = max(program.waits_since, self._quiet_since)
                if now - since > quiet and not self._is_excused(since, now):
                    yield f"requests {list(program.waits)} wait for memory, and for {now - since} us nothing has used it"
                    program.waits.clear()

    def _may_have_all(self, program: _Program) -> bool:
        """Return whether a backend serves the model of a program, and no other program has a place or a turn before it."""
        others = (each for each in self._programs.values() if each is not program and (each.has_place or each.waits))
        is_served = any(program.model in models for models in self._up.values())
        return is_served and all(other.priority_class <= program.priority_class for other in others)


def _age(program: _Program) -> Micros:
    return program.waits_since
