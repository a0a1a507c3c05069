"""A budget: never exceeded, whatever the order, the failures and the cancellations."""

import asyncio
import contextlib
import random
import threading
import time

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.fuzzing import examples
from tests.text import server as faults
from tests.text.server import Server

from pullback.errors import ArgumentError, BudgetError, ModelError
from pullback.text.lm import (
    LM,
    Account,
    Budget,
    Completion,
    Image,
    Message,
    OpenAI,
    Plan,
    Request,
    Retry,
    Run,
    Scripted,
    Spending,
    Usage,
)
from pullback.text.lm._steps import IMAGE_TOKENS, most_of
from pullback.text.prices import Price

KEY = "sk-budget-0123456789"
PRICE = Price(3.0, 7.0)


class Billing(LM):
    """A provider that bills: it keeps what it took, and the most that it had under way."""

    model = "billing"
    price = PRICE

    def __init__(self, rng, limits):
        self.rng = rng
        self.limits = limits
        self.calls = self.tokens = self.under_way = self.most = 0
        self.cost = 0.0

    async def answer(self, request):
        output = self.rng.randint(0, request.options["max_tokens"])
        size = self.rng.randint(1, len(request.messages[0].text.encode()))
        turns, fate = self.rng.randrange(6), self.rng.random()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if fate < 0.1:
                raise ModelError("busy", transient=True, status=503)
            for _ in range(turns):
                await asyncio.sleep(0)
            self.bill(size, output)  # from here on it is paid, whether or not the answer arrives
            for _ in range(turns):
                await asyncio.sleep(0)
            if fate < 0.2:
                raise ModelError("dropped", transient=True, may_be_billed=True)
            reported = fate < 0.9
            cost = PRICE.cost(size, output)
            return Completion(
                "x",
                Usage(size, output, cost=cost) if reported else Usage(),
                metadata={} if reported else {"usage": "not reported"},
            )
        finally:
            self.under_way -= 1

    def bill(self, size, output):
        self.calls += 1
        self.tokens += size + output
        self.cost += PRICE.cost(size, output)
        for name, limit in self.limits.items():
            assert getattr(self, name) <= limit * (1 + 1e-12), f"{name}: the budget is exceeded"


async def schedule(seed):
    rng = random.Random(seed)
    request = Request.of("word " * rng.randint(1, 40), max_tokens=rng.choice([1, 50, 400]))
    most = most_of(request.to_dict(), PRICE)
    room = rng.choice([0, 0.5, 3, 20, 90])
    choices = {"calls": int(room), "tokens": int(room * most.tokens), "cost": room * most.cost}
    names = rng.sample(sorted(choices), rng.randint(1, 3))
    limits = {name: choices[name] for name in names}
    model = Billing(rng, limits)
    account = Account(**limits)
    lm = Budget(model, account)

    async def one(number):
        try:
            if number >= 64:
                await asyncio.sleep(0)
            await lm.ask(request)
        except (BudgetError, ModelError) as error:
            return type(error)
        return Completion

    tasks = [asyncio.create_task(one(number)) for number in range(96)]
    for _ in range(rng.randrange(4)):
        await asyncio.sleep(0)
        rng.choice(tasks).cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [error for error in outcomes if isinstance(error, AssertionError | ArgumentError)]
    assert not faults, f"seed {seed}: {faults[0]}"
    assert account.reserved == Spending(), f"seed {seed}"
    spent = account.spent
    assert spent.calls >= model.calls, f"seed {seed}"
    assert spent.tokens >= model.tokens, f"seed {seed}"
    assert spent.cost >= model.cost * (1 - 1e-12), f"seed {seed}"
    for name, limit in limits.items():
        assert getattr(spent, name) <= limit * (1 + 1e-12), f"seed {seed}: {name}"
    return model.most, sum(outcome is Completion for outcome in outcomes)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(30), deadline=None)
def test_no_random_schedule_exceeds_a_budget(seed):
    asyncio.run(schedule(seed))


def test_the_schedules_have_64_calls_under_way_and_answers():
    found = [asyncio.run(schedule(seed)) for seed in range(20)]
    assert max(most for most, _ in found) >= 64
    assert sum(answers for _, answers in found) > 100


def test_the_schedules_would_catch_a_budget_that_reserves_nothing(monkeypatch):
    monkeypatch.setattr(Account, "_exceeded", lambda self, amounts, beside: [])

    def exceeded(seed):
        try:
            asyncio.run(schedule(seed))
        except AssertionError:
            return True
        return False

    assert any(exceeded(seed) for seed in range(20))


def test_threads_share_an_account():
    with Server(delay=0.005) as server:
        account = Account(calls=12)
        lms = [Budget(OpenAI("m", base_url=server.url, api_key=KEY), account) for _ in range(2)]
        refused = []

        def ask(lm):
            for _ in range(4):
                try:
                    lm("x")
                except BudgetError:
                    refused.append(1)

        threads = [threading.Thread(target=ask, args=(lms[n % 2],)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.bodies) == 12
        assert len(refused) == 12
        assert account.spent.calls == 12


@pytest.mark.parametrize("limit", [{"calls": 0}, {"tokens": 0}, {"cost": 0.0}, {"seconds": 0}])
def test_a_budget_of_zero_refuses_by_name_and_sends_nothing(limit):
    with Server() as server:
        lm = Budget(OpenAI("m", base_url=server.url, api_key=KEY, price=PRICE), **limit)
        with pytest.raises(BudgetError, match=next(iter(limit)).replace("seconds", "time")):
            lm("x", max_tokens=1)
        with pytest.raises(BudgetError):
            list(lm.stream("x", max_tokens=1))
        assert server.bodies == []


@pytest.mark.parametrize(
    "limits",
    [{}, {"calls": -1}, {"cost": float("nan")}, {"cost": float("inf")}, {"tokens": "x"},
     {"calls": True}],
)  # fmt: skip
def test_bad_limits_are_refused(limits):
    with pytest.raises(ArgumentError):
        Budget(Scripted(["x"]), **limits)


def test_budgets_that_could_not_hold_are_refused():
    unpriced = OpenAI("unheard-of", base_url="http://localhost:1/v1")
    with pytest.raises(ArgumentError, match="price"):
        Budget(unpriced, cost=1.0)
    with pytest.raises(ArgumentError, match="retries"):
        Budget(Retry(unpriced), calls=5)
    with pytest.raises(ArgumentError, match="account"):
        Budget(unpriced, Account(calls=1), calls=1)
    with pytest.raises(ArgumentError, match="calls=100"):
        Budget(unpriced, 100)
    with pytest.raises(ArgumentError, match=r"(?s)dollars.*cost"):
        Budget(unpriced, dollars=1)
    with pytest.raises(ArgumentError, match="max_tokens"):
        Budget(unpriced, tokens=1000)("x")
    with pytest.raises(ArgumentError, match="longest"):
        Budget(unpriced, tokens=1000)("x", max_tokens=-5)


def test_the_longest_answer_is_sent_where_a_request_says_nothing():
    with Server() as server:
        lm = Budget(OpenAI("m", base_url=server.url, api_key=KEY), tokens=9000,
                    max_output_tokens=77)  # fmt: skip
        lm("x")
        lm("x", max_tokens=5)
    assert [body["max_tokens"] for body in server.bodies] == [77, 5]


def test_a_stream_is_settled_at_its_end_and_counts_as_its_most_when_it_is_left():
    async def leave(lm):
        async with contextlib.aclosing(lm.astream("a long answer", max_tokens=50)) as chunks:
            async for _ in chunks:
                break

    with Server() as server:
        lm = Budget(OpenAI("m", base_url=server.url, api_key=KEY), tokens=5000)
        list(lm.stream("a long answer", max_tokens=50))
        assert lm.account.spent == Spending(1, server.tokens)
        asyncio.run(leave(lm))
        most = most_of(Request.of("a long answer", max_tokens=50).to_dict(), None)
        assert lm.account.spent.tokens == server.tokens // 2 + most.tokens
        assert lm.account.reserved == Spending()


def test_a_retry_counts_every_attempt():
    plan = [faults.status(500), faults.status(503), faults.drop, None]
    with Server(faults=plan) as server:
        lm = Budget(OpenAI("m", base_url=server.url, api_key=KEY), calls=10)
        assert Retry(lm, wait=0.001)("x").text == "x"
        assert lm.account.spent.calls == 3  # a 503 says that nothing was done


def test_time_ends_calls_under_way():
    with Server(faults=[faults.hang(5)]) as server:
        lm = Budget(OpenAI("m", base_url=server.url, api_key=KEY), seconds=0.5)
        begin = time.monotonic()
        with pytest.raises(BudgetError, match="time"):
            lm("x")
        with pytest.raises(BudgetError, match="time"):
            lm("y")
        assert time.monotonic() - begin < 4
        assert len(server.bodies) == 1


def test_who_must_wait_goes_on_when_others_used_less():
    # Each reserves 300 tokens and more, and uses two: one after another they all have room.
    with Server(delay=0.005) as server:
        model = OpenAI("m", base_url=server.url, api_key=KEY)
        most = most_of(Request.of("x", max_tokens=100).to_dict(), None).tokens
        lm = Budget(model, tokens=most + 200)

        async def many():
            return await asyncio.gather(*(lm.acomplete("x", max_tokens=100) for _ in range(8)))

        assert len(asyncio.run(many())) == 8
        assert server.most == 1


def test_the_most_of_a_request_bounds_whatever_is_in_it():
    image = Image.from_bytes(b"x" * 9000, "image/png")
    most = most_of(Request.of([Message("user", ["ü" * 100, image])]).to_dict(), None)
    assert IMAGE_TOKENS + 200 <= most.tokens < IMAGE_TOKENS + 900
    assert most_of(Request.of("x", max_tokens=7).to_dict(), PRICE).cost > 7 * 7e-6
    # Half a character is sent as U+FFFD, which is three bytes.
    half = most_of(Request.of("\ud800" * 1000, max_tokens=7).to_dict(), None)
    assert half.tokens > 3000 + 7


class Own(LM):
    """A model of one's own, which tells what it likes of what it used."""

    model, price = "own", Price(1e6, 1e6)

    def __init__(self, usage):
        self.usage = usage

    async def answer(self, request):
        return Completion("x", self.usage)


@pytest.mark.parametrize(
    ("usage", "tokens", "cost"),
    [(Usage(3, 3), 6, 6.0), (Usage(3, 3, cost=5.0), 6, 5.0), (Usage(cost=5.0), None, 5.0),
     (Usage(), None, None), (Usage(cost=0.0), 0, 0.0)],
)  # fmt: skip
def test_what_an_answer_does_not_tell_is_settled_by_the_price_or_at_its_most(
    tmp_path, usage, tokens, cost
):
    most = most_of(Request.of("hi", max_tokens=5).to_dict(), Own.price)
    wanted = Spending(1, most.tokens if tokens is None else tokens,
                      most.cost if cost is None else cost)  # fmt: skip
    account = Account(cost=1e4, tokens=10**6)
    Budget(Own(usage), account, max_output_tokens=5)("hi")
    assert account.spent == wanted
    list(Budget(Own(usage), account, max_output_tokens=5).stream("hi"))
    assert account.spent.tokens == 2 * wanted.tokens
    for times in (1, 1, 2):
        with Run(tmp_path / "run.sqlite", account=Account(tokens=10**6)) as run:
            for _ in range(times):
                Own(usage)("hi", max_tokens=5)
        assert run.account.spent.tokens == times * wanted.tokens
    priced = cost if usage.tokens or usage.cost is not None else None
    assert [call.answer.usage.cost for call in run.before] == [priced]


def test_a_model_that_tells_no_usage_meets_its_budget():
    lm = Budget(Own(Usage()), tokens=1000, max_output_tokens=10)
    with pytest.raises(BudgetError):
        [lm("x" * 300 + str(number)) for number in range(10)]


def test_proposals_are_counted():
    account = Account(proposals=2)
    account.propose()
    account.propose()
    with pytest.raises(BudgetError, match="proposals"):
        account.propose()
    Budget(Scripted(["x"]), account)("x")  # a call is no proposal


def test_a_plan_says_what_a_budget_buys():
    plan = Plan(start=10, each=10, proposals=11)
    account = Account(calls=40)
    text = "at least 120 calls for 11 proposals; your budget of 40 calls allows 3 proposals"
    assert plan.describe(account) == text
    assert plan.describe(None) == "at least 120 calls for 11 proposals"
    assert plan.affords(Account(calls=5)) == 0
    assert plan.affords(Account(proposals=2)) == 2
    assert plan.affords(Account(cost=1.0)) == 11
    with pytest.raises(ArgumentError):
        Plan(-1, 1, 1)


def test_a_plan_of_a_resumed_run_takes_its_answers_again(tmp_path):
    plan = Plan(start=2, each=1, proposals=5)
    for _ in range(2):
        with Run(tmp_path / "run.sqlite", account=Account(calls=4)) as run:
            run.expect(plan)
            Scripted(lambda request: "x")("a"), Scripted(lambda request: "x")("b")
        assert run.described[0].endswith("your budget of 4 calls allows 2 proposals")


def test_a_resumed_run_counts_what_it_has_spent(tmp_path):
    path = tmp_path / "run.sqlite"
    answers = Scripted(lambda request: "x")
    with Run(path, account=Account(calls=3)):
        answers("a"), answers("b"), answers("c")
        with pytest.raises(BudgetError, match="calls"):
            answers("d")
    with Run(path, account=Account(calls=4)) as run:
        assert run.account.spent.calls == 3
        for text in "abcd":
            answers(text)
        with pytest.raises(BudgetError):
            answers("e")
        assert (run.paid, run.recorded) == (1, 3)


def test_a_call_in_doubt_counts_as_its_most_in_a_resumed_run(tmp_path):
    path = tmp_path / "run.sqlite"
    lost = Scripted([ModelError("lost", may_be_billed=True)])
    with Run(path), pytest.raises(ModelError):
        lost("a")
    with Run(path, account=Account(calls=5, tokens=10**6), max_output_tokens=100) as run:
        assert run.account.spent.calls == 1
        assert run.account.spent.tokens > 100
