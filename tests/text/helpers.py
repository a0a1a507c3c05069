"""What the tests of texts share: scripts that stand for models, and pipelines."""

import re

from pullback.text.lm import Scripted


def sections(text):
    """The sections of a critic's prompt, by their fence: a prompt may be quoted inside another."""
    pattern = r"<(CALL|ANSWER|SAID|PARTS) ?(\w*)>(.*?)</\1 ?\2>"
    return {name: inside.strip() for name, _, inside in re.findall(pattern, text, re.DOTALL)}


def parts(text):
    """The numbers of the parts that a critic is asked about, and what was said."""
    found = sections(text)
    pattern = r'<PART id="(\d+)" role="[^"]*" (\w+)>.*?</PART \2>'
    numbers = [number for number, _ in re.findall(pattern, found["PARTS"], re.DOTALL)]
    return numbers, found["SAID"]


def criticise(request):
    """A critic that tells every part what was said."""
    numbers, said = parts(request.messages[1].text)
    return "".join(f'<FEEDBACK id="{n}">part {n}: {said}</FEEDBACK>' for n in numbers)


def answering(answer):
    """A script that answers by a function of the request, and criticises where it is asked to."""

    def rule(request):
        asked = len(request.messages) > 1 and "<PARTS" in request.messages[1].text
        return criticise(request) if asked else answer(request)

    return Scripted(rule)


class Counting:
    """A function of a request that counts its calls and keeps the requests."""

    def __init__(self, answer):
        self.answer, self.requests = answer, []

    def __call__(self, request):
        self.requests.append(request)
        return self.answer(request) if callable(self.answer) else self.answer
