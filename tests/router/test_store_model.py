"""The two stores, side by side under random operations."""

import asyncio
import uuid
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from runtime.router.store import MemoryStore, Taken
from runtime.router.valkey_store import ValkeyStore
from tests.router.redis_server import redis_server
from tests.router.stored import handle, history, key, name_of, names, told

# Few names, so that histories meet; an id and its tenant are part of every real digest,
# but the stores must agree also on digests that several ids share.
HISTORIES = st.text("abc", min_size=1, max_size=3)
IDS = st.sampled_from(["id", "id", "other", None])
ENGINES = st.sampled_from(["e", "f"])
BUDGETS = st.sampled_from([None, 32, 64])


def beginnings(name: str) -> list[str]:
    """Of a history whose answers are its letters, longest first."""
    return [name[:length] for length in range(len(name) - 1, 0, -1)]


class TwoStores(RuleBasedStateMachine):
    """Does everything to both."""

    url: ClassVar[str]
    runner: ClassVar[asyncio.Runner]
    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore()
        self.valkey = ValkeyStore(self.url, uuid.uuid4().hex, 5.0)

    @rule(
        name=HISTORIES,
        conversation=IDS,
        engine=ENGINES,
        tokens=st.sampled_from([16, 32, 80]),
        budget=BUDGETS,
        deadline_s=st.sampled_from([0.0, 1000.0, 2000.0]),
    )
    def put(
        self,
        name: str,
        conversation: str | None,
        engine: str,
        tokens: int,
        budget: int | None,
        deadline_s: float,
    ) -> None:
        stored = handle(
            *(name, *beginnings(name)),
            conversation=conversation,
            engine=engine,
            tokens=tokens,
            deadline_s=deadline_s,
        )
        one = self.runner.run(self.memory.put(stored, 0.0, budget))
        other = self.runner.run(self.valkey.put(stored, 0.0, budget))
        assert names(one) == names(other)

    @rule(target=taken, name=HISTORIES, conversation=IDS)
    def take(self, name: str, conversation: str | None) -> object:
        keys = history(name, *beginnings(name), conversation=conversation)
        one = self.runner.run(self.memory.take(keys, 0.0))
        other = self.runner.run(self.valkey.take(keys, 0.0))
        assert told(one) == told(other)
        return multiple() if one is None else one

    @rule(taken=consumes(taken))
    def put_back(self, taken: Taken) -> None:
        one = self.runner.run(self.memory.put_back(taken, 0.0))
        assert one == self.runner.run(self.valkey.put_back(taken, 0.0))

    @rule(conversation=st.sampled_from(["id", "other"]))
    def end(self, conversation: str) -> None:
        one = self.runner.run(self.memory.end(key(conversation)))
        other = self.runner.run(self.valkey.end(key(conversation)))
        assert sorted(names(one)) == sorted(names(other))

    @rule(engine=ENGINES)
    def drop_engine(self, engine: str) -> None:
        one = self.runner.run(self.memory.drop_engine(engine))
        assert one == self.runner.run(self.valkey.drop_engine(engine))

    @invariant()
    def books_are_in_order(self) -> None:
        kept = self.memory.handles
        pinned = self.runner.run(self.memory.pinned_tokens(["e", "f"]))
        assert pinned == sum(one.pinned_tokens for one in kept)
        assert pinned == self.runner.run(self.valkey.pinned_tokens(["e", "f"]))
        assert len({name_of(one) for one in kept}) == len(kept)

    def teardown(self) -> None:
        assert self.valkey.failures == 0
        self.runner.run(self.valkey.close())


def test_both_stores_do_the_same() -> None:
    """Whatever is asked of them, in whatever order, both give the same answers."""
    with redis_server() as server, asyncio.Runner() as runner:
        TwoStores.url, TwoStores.runner = server.url, runner
        run_state_machine_as_test(
            TwoStores,
            settings=settings(
                max_examples=250,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
