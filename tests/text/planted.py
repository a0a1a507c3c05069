"""Pipelines of rule programs with one wrong step, drawn at random.

A step is right by its own definition in `STEPS`; a fault is another program in its place, drawn
without regard to what any rule looks for. The rules in `RULES` are properties, each true of the
right step for every input; none is the step written again, so a fault may keep them all.
"""

import itertools
import random
import re
from collections import Counter

from pullback.tape import Variable
from pullback.text import Parameter, Rule, RuleCritic, exact_match, map_python

STEPS = {
    "upper case": str.upper,
    "lower case": str.lower,
    "no digits": lambda s: re.sub(r"[0-9]", "", s),
    "no punctuation": lambda s: re.sub(r"[^\w\s]", "", s),
    "words in order": lambda s: " ".join(sorted(s.split())),
    "each word once": lambda s: " ".join(dict.fromkeys(s.split())),
    "short words only": lambda s: " ".join(w for w in s.split() if len(w) <= 5),
    "words reversed": lambda s: " ".join(w[::-1] for w in s.split()),
    "last word first": lambda s: " ".join([*s.split()[-1:], *s.split()[:-1]]),
    "single spaces": lambda s: " ".join(s.split()),
}


def _unless(good, complaint):
    return None if good else complaint


def _lacks(pattern, complaint):
    return lambda s, o: _unless(not re.search(pattern, o), complaint)


RULES = [
    Rule(_lacks("[a-zé]", "a small letter is left"), "upper case"),
    Rule(_lacks("[A-ZÉ]", "a capital is left"), "lower case"),
    Rule(lambda s, o: _unless(s.casefold() == o.casefold(), "more than case changed"), "case"),
    Rule(_lacks("[0-9]", "a digit is left"), "no digits"),
    Rule(_lacks(r"[^\w\s]", "a mark is left"), "no punctuation"),
    Rule(lambda s, o: _only_lost(s, o, r"[0-9]"), "no digits"),
    Rule(lambda s, o: _only_lost(s, o, r"[^\w\s]"), "no punctuation"),
    Rule(
        lambda s, o: _unless(Counter(s.split()) == Counter(o.split()), "other words"),
        "words in order|last word first|single spaces",
    ),
    Rule(lambda s, o: _unless(_sorted(o.split()), "the words are not in order"), "words in order"),
    Rule(lambda s, o: _unless(len(set(o.split())) == len(o.split()), "a word twice"), "each word"),
    Rule(lambda s, o: _unless(set(s.split()) == set(o.split()), "other words"), "each word once"),
    Rule(lambda s, o: _unless(all(len(w) <= 5 for w in o.split()), "a long word"), "short"),
    Rule(lambda s, o: _unless(not Counter(o.split()) - Counter(s.split()), "new words"), "short"),
    Rule(lambda s, o: _unless(_short(s) == len(o.split()), "too few, or too many"), "short"),
    Rule(lambda s, o: _unless(_letters(s) == _letters(o), "other letters"), "words reversed"),
    Rule(
        lambda s, o: _unless(
            [w[:1] for w in o.split()] == [w[-1:] for w in s.split()],
            "a word does not begin with its last letter",
        ),
        "words reversed",
    ),
    Rule(lambda s, o: _unless(o.split()[:1] == s.split()[-1:], "not the last word"), "last word"),
    Rule(lambda s, o: _unless("  " not in o and o == o.strip(), "spaces are left"), "single"),
]

FAULTS = {
    "does nothing": lambda right, other: lambda s: s,
    "does another step": lambda right, other: other,
    "loses the last word": lambda right, other: lambda s: " ".join(right(s).split()[:-1]),
    "loses the first half": lambda right, other: lambda s: right(s)[len(right(s)) // 2 :],
    "does it to the first word": lambda right, other: (
        lambda s: " ".join([right(w) if n == 0 else w for n, w in enumerate(s.split())])
    ),
    "doubles": lambda right, other: lambda s: f"{right(s)} {right(s)}",
    "swaps two letters": lambda right, other: lambda s: right(s)[1:2] + right(s)[:1] + right(s)[2:],
    "says nothing": lambda right, other: lambda s: "",
    "adds a remark": lambda right, other: lambda s: f"Sure! {right(s)}",
    "is slightly off": lambda right, other: lambda s: right(s).replace("a", "e", 1),
}


def draw(dice: random.Random):
    """A pipeline, its fault and an input on which the fault shows; None if it shows nowhere."""
    names = [dice.choice(list(STEPS)) for _ in range(dice.randint(3, 10))]
    place = dice.randrange(len(names))
    right, other = STEPS[names[place]], STEPS[dice.choice(list(STEPS))]
    fault = FAULTS[dice.choice(list(FAULTS))](right, other)
    for _ in range(20):
        words = [
            "".join(dice.choice("abcdeXYZé019.,!") for _ in range(dice.randint(1, 8)))
            for _ in range(dice.randint(2, 9))
        ]
        text = ("  " if dice.random() < 0.3 else " ").join(words)
        want = got = text
        for number, name in enumerate(names):
            want = STEPS[name](want)
            got = (fault if number == place else STEPS[name])(got)
        if want != got:
            return names, place, fault, text, want
    return None


def blamed(names, place, fault, text, want):
    """The steps that feedback on the result reaches, by their numbers."""
    critic = RuleCritic(RULES)
    purposes = [Parameter(name, role=f"step {number}") for number, name in enumerate(names)]
    value = Variable(text, role="input")
    for number, purpose in enumerate(purposes):
        step = fault if number == place else STEPS[names[number]]
        value = map_python(step, value, purpose=purpose, critic=critic)
    exact_match(value, want).backward()
    return [number for number, purpose in enumerate(purposes) if purpose.grad]


def _short(text):
    return sum(len(word) <= 5 for word in text.split())


def _letters(text):
    return [sorted(word) for word in text.split()]


def _sorted(words):
    return all(a <= b for a, b in itertools.pairwise(words))


def _only_lost(before, after, pattern):
    kept = Counter(re.sub(pattern, "", before))
    return None if kept == Counter(after) else "more or less was taken out"


def _always_true():
    """Every rule holds of its right step, or it would blame the innocent."""
    dice = random.Random(7)
    for _ in range(300):
        text = " ".join(
            "".join(dice.choice("abcXé01.,") for _ in range(dice.randint(1, 8)))
            for _ in range(dice.randint(0, 6))
        )
        for name, step in STEPS.items():
            for rule in RULES:
                if rule.applies(name):
                    yield name, text, rule.check(text, step(text))
