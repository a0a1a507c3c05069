"""A place does not depend on time: of a batch, of what waits, of tasks side by side."""

import asyncio
import random

from pullback.tape import Function, Variable, at, place, vmap


class Where(Function):
    """Says where it runs, after a while; backward says where that is."""

    gradient = "nonlinear"

    @staticmethod
    async def forward(ctx, a):
        await asyncio.sleep(random.random() / 200)
        return Variable(f"{place()}")

    @staticmethod
    async def backward(ctx, g):
        await asyncio.sleep(random.random() / 200)
        return Variable(f"{place()}")


def test_each_operation_that_waits_has_a_place_forward_and_back():
    x = Variable("x", requires_grad=True)
    with at("item", 3):
        one, two = Where.apply(x), Where.apply(x)
    assert (one.data, two.data) == ("('item', 3, 0)", "('item', 3, 1)")
    with at("elsewhere"):
        two.backward(Variable("said"))
    assert x.grad[0].data == "('item', 3, 1, 'backward')"
    assert place() == ()


def test_the_items_of_a_batch_have_places_of_their_own_whatever_comes_first():
    found = set()
    for _ in range(5):
        with at("batch"):
            out = vmap(lambda x: Where.apply(Where.apply(x)))([Variable(f"{n}") for n in range(9)])
        found.add(tuple(out.data))
    [places] = found
    assert len(set(places)) == 9


def test_tasks_side_by_side_count_for_themselves():
    async def task(number):
        with at("task", number):
            await asyncio.sleep(random.random() / 200)
            first = await Where.aapply(Variable("x"))
            return first.data, (await Where.aapply(Variable("x"))).data

    async def main():
        return await asyncio.gather(*(task(number) for number in range(5)))

    assert asyncio.run(main()) == [
        (f"('task', {number}, 0)", f"('task', {number}, 1)") for number in range(5)
    ]
