"""Optimise a two-step pipeline end to end: label a mail, then route it. No model and no key needed.

Both steps, the critic and the writer are a script here: fixed rules that follow what the prompts
say, so what this shows is the mechanics (feedback, blame, proposals that are measured), never the
quality of a model. Run it against any server that speaks OpenAI's chat completions instead, such
as a local Ollama (``pip install 'pullback[openai]'``):

    OPENAI_BASE_URL=http://localhost:11434/v1 python examples/support_triage.py

It takes the first model that the server lists, or the one that TRIAGE_MODEL names, of OpenAI if no
server is named.

It writes triage.html: which step was blamed, how the score rose, what changed in the prompts, and
every call. Or keep the calls and go on after an interrupt:

    pullback text run examples/support_triage.py && pullback text show run.sqlite
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from pullback import text
from pullback.tape import Variable, vmap
from pullback.text.lm import LM, Journal, OpenAI, Retry, Run, Scripted, current_run
from pullback.text.optim import TGD, Validated, max_length
from pullback.text.report import render_run
from pullback.text.train import DataLoader, Measure, Trainer

TEAMS = {
    "invoice": "accounts", "refund": "accounts", "screen": "helpdesk", "login": "helpdesk",
    "heating": "facilities", "leak": "facilities",
}  # fmt: skip
SENTENCES = (
    "The {word} is wrong.", "I wrote about the {word} last week.", "Trouble with the {word} again!",
    "Who looks after the {word}?", "About the {word}: please call me.", "The {word}, once more.",
)  # fmt: skip
MAILS = [(each.format(word=word), team) for each in SENTENCES for word, team in TEAMS.items()]
TRAIN, HELD, UNSEEN = MAILS[:12], MAILS[12:30], MAILS[30:]
LABELS = {"accounts": "money", "helpdesk": "computers", "facilities": "building"}


class Triage(text.Module):
    """Label a mail, then name the team for the label."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.label = text.ChatModule(
            lm, "Label the mail. Rules:\ninvoice -> money", "{mail}", role="label"
        )
        self.route = text.ChatModule(
            lm, "Name the team for the label. Rules:\nmoney -> accounts", "{label}", role="team"
        )

    def forward(self, mail):
        return self.route(label=self.label(mail=mail))

    def training_step(self, batch, number):
        mail, team = batch
        return text.exact_match(vmap(self)(mail), team)

    def configure_optimizers(self):
        tgd = TGD(self.parameters(), self.lm, constraints=[max_length(600)])
        return Validated(tgd, measure(self, HELD), final=measure(self, UNSEEN))


def measure(module, mails):
    return Measure(module, lambda m, s: text.exact_match(m(s[0]), s[1]), samples(mails))


def samples(mails):
    return [(Variable(mail, "mail"), team) for mail, team in mails]


def follow(request):
    """Stand in for a model that does just what its rules say."""
    for asked in [message.text for message in request.messages]:  # the last may say: once more
        if "<PARTS" in asked:
            return criticise(asked)
        if "<CONSTRAINTS" in asked:
            return rewrite(asked)
    asked = request.messages[-1].text
    rules = re.findall(r"(\w+) -> (\w+)", request.messages[0].text)
    return next((then for word, then in rules if word in asked), "other")


def criticise(asked):
    """Say which rule is missing, to the prompt if it lacks one, else to what it was given."""
    worked_on = re.search(r"\[user \w+\]\n(.*?)\n</CALL", asked, re.S).group(1)
    expected = re.search(r"(?:Expected: |should lead to )(\w+)", asked).group(1)
    told = {}
    for number, role, part in re.findall(
        r'<PART id="(\d+)" role="([^"]*)" \w+>\n(.*?)\n</PART', asked, re.S
    ):
        if role == "system prompt of team":
            right = f"{LABELS[expected]} -> {expected}"
            told[number] = "" if right in part else f"Add the rule: {right}"
        elif role == "system prompt of label":
            word = next(word for word in TEAMS if word in worked_on)
            right = f"{word} -> {LABELS[expected]}"
            told[number] = "" if right in part else f"Add the rule: {right}"
        else:
            told[number] = f"This should lead to {expected}."
    return "".join(f'<FEEDBACK id="{n}">{said}</FEEDBACK>' for n, said in told.items())


def rewrite(asked):
    """Add the rules that the feedback asks for."""
    text_now = re.search(r"<TEXT \w+>\n(.*?)\n</TEXT", asked, re.S).group(1)
    rules = dict.fromkeys(re.findall(r"Add the rule: (\w+ -> \w+)", asked))
    return f"<IMPROVED>{chr(10).join([text_now, *rules])}</IMPROVED>"


def model():
    name = os.environ.get("TRIAGE_MODEL")
    if not name and "OPENAI_BASE_URL" in os.environ:
        import openai

        key = os.environ.get("OPENAI_API_KEY", "none")
        name = next(each.id for each in openai.OpenAI(api_key=key).models.list())
    if not name:
        return Scripted(follow, model="a script, not a model")
    return Retry(OpenAI(name))  # any server refuses or drops a call now and then


def blame(triage):
    """Run one mail that goes astray back, and say which step is at fault."""
    mail, team = "The screen is wrong.", "helpdesk"
    with text.tolerate():  # an answer that cannot be used is blamed, too
        evaluation = text.exact_match(triage(Variable(mail, "mail", requires_grad=True)), team)
        evaluation.backward()
    print(f"{mail!r} should go to {team}; feedback blames")
    for each in text.blame(triage.parameters()):
        print(f"  {each}")
    current_run().keep_graph(evaluation.score, "one mail that goes astray")
    triage.zero_grad()


def optimise(triage):
    score = measure(triage, HELD)
    print(f"asked: {triage.lm.model}\nheld mails routed rightly before: {score():.0%}\n")
    blame(triage)
    loader = DataLoader(samples(TRAIN), 6, shuffle=True, seed=0)
    trainer = Trainer(3)
    print(f"\nplan: {trainer.plan(triage, loader, triage.configure_optimizers()).describe(None)}")
    result = trainer.fit(triage, loader)
    for number, outcome in enumerate(result.outcomes, 1):
        print(f"  proposal {number} {'kept' if outcome.accepted else 'left'}: {outcome.reason}")
    print(f"{result}\nheld mails routed rightly after: {score():.0%}")


def main(page=Path("triage.html")):
    triage = Triage(model())
    if current_run() is not None:  # under `pullback text run`, which keeps a journal itself
        optimise(triage)
        return
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "triage.sqlite"
        with Run(journal):
            optimise(triage)
        with Journal(journal) as kept:
            page.write_text(render_run(kept), encoding="utf-8")
    print(f"\nwhat was said, changed and asked: {page}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
