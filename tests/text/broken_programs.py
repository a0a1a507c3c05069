"""Random programs that go wrong in every way, over a provider that bills: nested modules, batches,
threads, two event loops; faults of the provider, exceptions of the program, cancellations.
"""

import asyncio
import collections
import contextlib
import hashlib
import logging
import random
import threading
from dataclasses import replace

from tests.text.helpers import parts

from pullback.errors import ModelError, PullbackError, ReplyError
from pullback.tape import Variable, place, vmap
from pullback.text import (
    ChatModule,
    Module,
    Parameter,
    StepError,
    exact_match,
    join,
    map_python,
)
from pullback.text.lm import LM, Account, Completion, Run, Usage, keep_secret
from pullback.text.lm._json import canonical
from pullback.text.lm._openai import idempotency_key
from pullback.text.optim import TGD, Validated, max_length
from pullback.text.prices import Price
from pullback.text.train import DataLoader, Measure, Trainer

KEY = "sk-broken-0123456789"
PRICE = Price(3.0, 7.0)


class Crash(Exception):
    """What a user's program raises of its own."""


class Provider(LM):
    """Bills each request once by its Idempotency-Key; asserts that no budget was exceeded.

    What it answers depends on the request alone, so that a program asks the same whenever it is
    run. `chance` is that of a fault; at 0 there is none.
    """

    model = "billing"
    price = PRICE

    def __init__(self, seed, chance=0.0):
        keep_secret(KEY)
        self.rng, self.chance, self.limits = random.Random(seed), chance, {}
        self.lock = threading.Lock()
        self.billed = collections.Counter()
        self.known = {}
        self.spent = {"calls": 0, "tokens": 0, "cost": 0.0}
        self.most, self.again = collections.Counter(), collections.Counter()
        self.exceeded = ""

    async def answer(self, request):
        key = idempotency_key.get()
        digest = identity(request)
        with self.lock:
            fate, turns = self.rng.random() / max(self.chance, 1e-9), self.rng.randrange(4)
        if fate < 0.3:
            raise ModelError(f"refused {KEY}", transient=True, status=503)
        await asyncio.sleep(turns * 3e-4)
        text = reply(request, digest)
        usage = Usage(len(request.messages[-1].text) // 4 + 1, len(text) // 4 + 1)
        usage = Usage(usage.input_tokens, usage.output_tokens, 0,
                      PRICE.cost(usage.input_tokens, usage.output_tokens))  # fmt: skip
        self.bill(key, digest, usage)
        await asyncio.sleep(turns * 3e-4)
        if fate < 0.6:
            raise ModelError("lost on its way", transient=True, may_be_billed=True)
        if fate < 0.8:
            raise ReplyError("cut off", transient=True, may_be_billed=True)
        if fate < 1.0:
            raise RuntimeError(f"a fault of the client's own, {KEY}")
        return Completion(text, usage)

    def bill(self, key, digest, usage):
        with self.lock:
            if key is not None and key in self.known:
                return
            self.known[key] = digest
            self.billed[digest] += 1
            for name, used in (("calls", 1), ("tokens", usage.tokens), ("cost", usage.cost)):
                self.spent[name] += used
                if self.spent[name] > self.limits.get(name, 1e18) * (1 + 1e-12):
                    self.exceeded = f"{name}: {self.spent[name]} of {self.limits[name]}"


def identity(request):
    """What a request is, without its options: a budget adds its max_tokens."""
    return replace(request, options={}).digest("billing")


def reply(request, digest):
    """What the request alone decides: feedback, a new text, or an answer; some are useless."""
    asked, dice = request.messages[-1].text, random.Random(digest)
    text = next((each.text for each in request.messages if "<PARTS" in each.text), "")
    if text:
        numbers, _ = parts(text)
        said = "".join(
            f'<FEEDBACK id="{n}">say {dice.randrange(9)} {KEY}</FEEDBACK>' for n in numbers
        )
        return said if dice.random() < 0.9 else "no feedback"
    if any("<CONSTRAINTS" in each.text for each in request.messages):
        new = f"<IMPROVED>rule {dice.randrange(99)} {KEY if dice.random() < 0.1 else ''}</IMPROVED>"
        return dice.choice([new, new, new, "<IMPROVED>" + "long " * 60 + "</IMPROVED>", "nothing"])
    return f"{len(asked)} {dice.randrange(3)}"


class Step(Module):
    """One step of a pipeline: of a model, of Python, or others in turn or side by side."""

    def __init__(self, lm, dice, depth):
        self.kind = dice.choice(["chat", "chat", "python", "turn", "side"][: 5 if depth else 3])
        if self.kind == "chat":
            self.ask = ChatModule(lm, f"system {dice.randrange(4)}", "{x}", role="step",
                                  max_tokens=64)  # fmt: skip
        elif self.kind == "python":
            self.purpose = Parameter(f"purpose {dice.randrange(9)}", role="python step")
        else:
            self.steps = [Step(lm, dice, depth - 1) for _ in range(dice.randint(1, 3))]

    def forward(self, x):
        if self.kind == "chat":
            return self.ask(x=x)
        if self.kind == "python":
            return map_python(lambda text: text[::-1][:200], x, purpose=self.purpose)
        if self.kind == "turn":
            for step in self.steps:
                x = step(x)
            return x
        return join(" ", [step(x) for step in self.steps])


class Pipeline(Module):
    """Steps, a module of texts to optimise, and exceptions of the program itself."""

    def __init__(self, seed, lm, crash):
        dice = random.Random(seed)
        self.lm, self.crash = lm, crash
        self.inside = [Step(lm, dice, 2)]
        self.last = ChatModule(lm, "last {{x}}", "{x}", role="last", max_tokens=64)
        self.momentum = dice.randrange(3)
        held = [(Variable(f"held {n}", "mail"), "3 1") for n in range(dice.randint(1, 4))]
        self.measure = Measure(self, lambda module, s: exact_match(module(s[0]), s[1]), held)

    def forward(self, x):
        return self.last(x=self.inside[0](map_python(self.crash, x, purpose="clean")))

    def training_step(self, batch, number):
        mail, wanted = batch
        return exact_match(vmap(self)(mail) if isinstance(mail, list) else self(mail), wanted)

    def configure_optimizers(self):
        tgd = TGD(self.parameters(), self.lm, constraints=[max_length(200)], retries=1,
                  momentum=self.momentum, max_tokens=64)  # fmt: skip
        return Validated(tgd, self.measure, risk=1.0)


class Attempt:
    """One run of a program over a journal: what it raised, and what it broke."""

    def __init__(self, seed, path, provider, chance, limits):
        self.seed, self.path, self.provider = seed, path, provider
        self.dice = random.Random(f"{seed} {chance} {len(provider.known)}")
        self.chance, self.limits = chance, limits
        self.broken = []

    def crash(self, text):
        if self.dice.random() < self.chance / 20:
            raise self.dice.choice([Crash(KEY), ValueError(KEY), KeyError(KEY)])
        return text

    def run(self):
        """True where the program came to its end."""
        self.provider.chance, self.provider.limits = self.chance, self.limits
        account = Account(**self.limits) if self.limits else None
        pipeline = Pipeline(self.seed, self.provider, self.crash)
        style = random.Random(self.seed).choice([self.alone, self.two_loops, self.threads])
        try:
            with Run(self.path, account=account, max_output_tokens=64) as run:
                self.count(run.journal)
                style(pipeline)
        except (PullbackError, Crash, RuntimeError, asyncio.CancelledError) as error:
            self.look(error)
            return False
        return True

    def count(self, journal):
        """Keep how often one run has asked for the same at one place: it may pay for no more.

        What failed where too many did is asked again by the next run, as it is to be.
        """
        retire = journal.retire_failures

        def retired():
            for call in journal.calls():
                if call.failure is not None and call.occurrence >= 0:
                    whole = {"model": "billing", "request": {**call.request, "options": {}}}
                    self.provider.again[hashlib.sha256(canonical(whole).encode()).hexdigest()] += 1
            retire()

        journal.retire_failures = retired
        take, asked, lock = journal.take, collections.Counter(), threading.Lock()

        def counted(request, model, **options):
            with lock:
                asked[identity(request), place()] += 1
                self.provider.most |= asked
            return take(request, model, **options)

        journal.take = counted

    def look(self, error):
        told = "".join([str(error), repr(error), *getattr(error, "__notes__", ())])
        if isinstance(error, PullbackError) and KEY in told and not isinstance(error, StepError):
            own = error.__cause__ is None
            self.broken += [f"a key in {told}"] if own and "refused" not in told else []

    def alone(self, pipeline):
        """Backward, a step, and training, with nothing changed by what is refused."""
        for number in range(2):
            self.whole(pipeline, lambda n=number: self.once(pipeline, n))
        optimizer = TGD(pipeline.parameters(), self.provider, constraints=[max_length(200)],
                        retries=1, max_tokens=64)  # fmt: skip
        before = pipeline.state_dict()
        try:
            optimizer.step()
        except ReplyError as error:
            if error.transient:
                raise
        finally:
            now = pipeline.state_dict()
            if any(len(text) > 200 for text in now.values()):
                self.broken.append("a text that breaks its constraint was taken")
            changed = {name for name in now if now[name] != before[name]}
            if changed and optimizer.steps == 0:
                self.broken.append(f"a step that was refused has changed {changed}")
        pipeline.zero_grad()
        samples = [(Variable(f"mail {n}", "mail"), "2 0") for n in range(3)]
        loader = DataLoader(samples, None, shuffle=True, seed=self.seed)
        start = pipeline.measure()
        try:
            Trainer(1).fit(pipeline, loader)
        except ReplyError as error:
            if error.transient:
                raise
        finally:
            now = pipeline.measure.digest()
            known = [score for (state, _), score in pipeline.measure._scores.items()
                     if state == now]  # fmt: skip
            if len(known) < len(pipeline.measure.samples) or sum(known) / len(known) < start:
                self.broken.append("texts were left that were not measured, or score worse")

    def once(self, pipeline, number):
        evaluation = exact_match(pipeline(Variable(f"text {number}", "mail")), "9 9")
        try:
            evaluation.backward()
        except ReplyError as error:
            if error.transient:
                raise

    def whole(self, pipeline, work):
        """What is refused tells nobody."""
        before = [list(each.grad or ()) for each in pipeline.parameters()]
        try:
            work()
        except BaseException:
            now = [list(each.grad or ()) for each in pipeline.parameters()]
            if now != before:
                self.broken.append("feedback of a backward that was refused has stayed")
            raise

    def two_loops(self, pipeline):
        """Two event loops, in two threads, one of which may be cancelled at any time."""
        faults = []
        wait = self.dice.random() * 0.05 if self.dice.random() < self.chance * 3 else None

        def loop(name, wait):
            async def ask(number):
                with contextlib.suppress(ReplyError):
                    await self.provider.acomplete(f"{name} {number % 5}", max_tokens=64)

            async def main():
                await asyncio.wait_for(asyncio.gather(*(ask(n) for n in range(8))), wait)

            try:
                asyncio.run(main())
                pipeline(Variable(f"{name} at last", "mail"))
            except BaseException as error:
                faults.append(error)

        self._join(
            [threading.Thread(target=loop, args=each) for each in (("a", wait), ("b", None))]
        )
        self._raise(faults)

    def threads(self, pipeline):
        """Threads that measure the same texts and run the same pipeline."""
        faults = []

        def work():
            try:
                pipeline.measure()
            except BaseException as error:
                faults.append(error)

        self._join([threading.Thread(target=work) for _ in range(3)])
        self._raise(faults)
        if pipeline.measure.evaluations > len(pipeline.measure.samples):
            self.broken.append("a sample was measured twice")

    def _join(self, threads):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                self.broken.append("a thread hangs")

    @staticmethod
    def _raise(faults):
        for error in faults:
            if isinstance(error, TimeoutError):
                raise Crash("interrupted")
            raise error


def clean(seed, folder):
    """What the program spends where nothing goes wrong."""
    provider = Provider(seed)
    attempt = Attempt(seed, folder / f"clean-{seed}.sqlite", provider, 0.0, {})
    ended = attempt.run()
    return ended, provider.spent, attempt.broken


def faults_of(seed, folder):
    """Run a program until it ends, with ever fewer faults; every promise that it broke."""
    ended, spent, broken = clean(seed, folder)
    if not ended:
        return [*broken, "the program failed without a fault"]
    dice, provider = random.Random(seed), Provider(seed + 1)
    path = folder / f"run-{seed}.sqlite"
    limits = {}
    log = _Log()
    with log:
        for chance in [*[dice.random() * 0.2 for _ in range(dice.randrange(1, 5))], 0.0]:
            if chance and dice.random() < 0.5:
                name = dice.choice(["calls", "tokens", "cost"])
                share = dice.random() * 1.2
                limits = {name: type(spent[name])(spent[name] * share)}
            else:
                limits = {}
            attempt = Attempt(seed, path, provider, chance, limits)
            ended = attempt.run()
            broken += attempt.broken
    broken += [] if ended else ["the program did not end without faults"]
    broken += [f"a budget was exceeded: {provider.exceeded}"] if provider.exceeded else []
    allowed = collections.Counter(provider.again)
    for (digest, _), count in provider.most.items():
        allowed[digest] += count
    twice = {d: n for d, n in provider.billed.items() if n > allowed[d]}
    broken += [f"paid twice: {sum(twice.values())} calls"] if twice else []
    for file in folder.glob(f"*-{seed}.sqlite*"):
        broken += [f"a key in {file.name}"] if KEY.encode() in file.read_bytes() else []
    broken += ["a key in the log"] if KEY in log.text else []
    return broken


class _Log(logging.Handler):
    """All that is logged, at any level."""

    text = ""

    def emit(self, record):
        self.text += self.format(record)

    def __enter__(self):
        self.before = logging.getLogger().level
        logging.getLogger().addHandler(self)
        logging.getLogger().setLevel(logging.DEBUG)
        return self

    def __exit__(self, *exc):
        logging.getLogger().removeHandler(self)
        logging.getLogger().setLevel(self.before)
