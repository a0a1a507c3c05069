"""What the tests of texts share: scripts that stand for models, and pipelines."""

import re

from pullback.text.lm import Scripted


def sections(text):
    """The outermost sections of a critic's prompt: a prompt may be quoted inside another."""
    found, depth, start = {}, 0, 0
    for tag in re.finditer(r"<(/?)(CALL|ANSWER|SAID|PARTS)>", text):
        depth += -1 if tag.group(1) else 1
        if depth == 1 and not tag.group(1):
            start = tag.end()
        elif depth == 0:
            found[tag.group(2)] = text[start : tag.start()].strip()
    return found


def parts(text):
    """The numbers of the parts that a critic is asked about, and what was said."""
    found = sections(text)
    numbers, depth = [], 0
    for tag in re.finditer(r'<(/?)PART(?: id="(\d+)" role="[^"]*")?>', found["PARTS"]):
        if not tag.group(1) and depth == 0:
            numbers.append(tag.group(2))
        depth += -1 if tag.group(1) else 1
    return numbers, found["SAID"]


def criticise(request):
    """A critic that tells every part what was said."""
    numbers, said = parts(request.messages[1].text)
    return "".join(f'<FEEDBACK id="{n}">part {n}: {said}</FEEDBACK>' for n in numbers)


def answering(answer):
    """A script that answers by a function of the request, and criticises where it is asked to."""

    def rule(request):
        asked = len(request.messages) > 1 and "<PARTS>" in request.messages[1].text
        return criticise(request) if asked else answer(request)

    return Scripted(rule)


class Counting:
    """A function of a request that counts its calls and keeps the requests."""

    def __init__(self, answer):
        self.answer, self.requests = answer, []

    def __call__(self, request):
        self.requests.append(request)
        return self.answer(request) if callable(self.answer) else self.answer
