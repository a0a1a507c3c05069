"""Pipelines of rule programs with one wrong step, drawn at random.

A step is right by its own definition in `STEPS`; a fault is another program in its place, drawn
without regard to what any rule looks for. The rules in `RULES` are properties, each true of the
right step for every input; none is the step written again, so a fault may keep them all.
"""

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

RULES = [
    Rule(lambda s, o: None if not re.search("[a-zé]", o) else "a small letter is left", "upper case"),
    Rule(lambda s, o: None if not re.search("[A-ZÉ]", o) else "a capital is left", "lower case"),
    Rule(lambda s, o: None if s.casefold() == o.casefold() else "more than case changed", "case"),
    Rule(lambda s, o: None if not re.search("[0-9]", o) else "a digit is left", "no digits"),
    Rule(lambda s, o: None if not re.search(r"[^\w\s]", o) else "a mark is left", "no punctuation"),
    Rule(lambda s, o: _only_lost(s, o, r"[0-9]"), "no digits"),
    Rule(lambda s, o: _only_lost(s, o, r"[^\w\s]"), "no punctuation"),
    Rule(lambda s, o: _same_words(s, o), "words in order|last word first|single spaces"),
    Rule(lambda s, o: None if _sorted(o.split()) else "the words are not in order", "words in order"),
    Rule(lambda s, o: None if max(Counter(o.split()).values(), default=1) == 1 else "a word twice",
         "each word once"),
    Rule(lambda s, o: None if set(s.split()) == set(o.split()) else "other words", "each word once"),
    Rule(lambda s, o: None if all(len(w) <= 5 for w in o.split()) else "a long word is left", "short"),
    Rule(lambda s, o: None if not Counter(o.split()) - Counter(s.split()) else "new words", "short"),
    Rule(lambda s, o: None if sum(len(w) <= 5 for w in s.split()) == len(o.split()) else "too few",
         "short"),
    Rule(lambda s, o: None if [sorted(w) for w in s.split()] == [sorted(w) for w in o.split()]
         else "other letters", "words reversed"),
    Rule(lambda s, o: None if [w[:1] for w in o.split()] == [w[-1:] for w in s.split()]
         else "a word does not begin with its last letter", "words reversed"),
    Rule(lambda s, o: None if o.split()[:1] == s.split()[-1:] else "not the last word", "last word"),
    Rule(lambda s, o: None if "  " not in o and o == o.strip() else "spaces are left", "single"),
]  # fmt: skip

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


def _words_of(text):
    return Counter(text.split())


def _same_words(before, after):
    return None if _words_of(before) == _words_of(after) else "the words are not the same"


def _sorted(words):
    return all(a <= b for a, b in zip(words, words[1:], strict=False))


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
