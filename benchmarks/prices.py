"""Write src/pullback/text/prices.json from the prices that the package litellm ships.

    pip download --no-deps litellm && unzip litellm-*.whl
    python -m benchmarks.prices litellm/model_prices_and_context_window_backup.json 1.106.2 DATE

Of OpenAI's models for chat completions it takes those with one price: where the price depends on
the length of the prompt, on what a cache is written or on searches, one number would be wrong for
some calls, so such a model stays unknown, and a budget of money asks for its price.
"""

import json
import re
import sys
from pathlib import Path

TABLE = Path(__file__).parents[1] / "src" / "pullback" / "text" / "prices.json"
SOURCE = "https://github.com/BerriAI/litellm, model_prices_and_context_window.json (MIT)"
_SPECIAL = re.compile(r"_above_|cache_creation|audio|reasoning")
_LEFT_OUT = re.compile(r"[:/]|latest|-search|computer-use")  # fine-tuned, moving, or paid by more


def one_price(model: dict) -> dict | None:
    """Dollars for a million tokens, or None where there are several prices."""
    if model.get("litellm_provider") != "openai" or model.get("mode") != "chat":
        return None
    if any(_SPECIAL.search(name) for name in model if "cost" in name):
        return None
    costs = {
        "input": model.get("input_cost_per_token"),
        "cached": model.get("cache_read_input_token_cost"),
        "output": model.get("output_cost_per_token"),
    }
    if not costs["input"] or not costs["output"]:
        return None
    return {name: round(cost * 1e6, 6) for name, cost in costs.items() if cost}


def main(path: str, version: str, released: str) -> None:
    models = json.loads(Path(path).read_text("utf-8"))
    prices = {
        name: price
        for name, model in sorted(models.items())
        if not _LEFT_OUT.search(name) and (price := one_price(model)) is not None
    }
    head = {"as_of": released, "source": f"{SOURCE}, as shipped by litellm {version}"}
    lines = [f"    {json.dumps(name)}: {json.dumps(price)}" for name, price in prices.items()]
    text = json.dumps({**head, "unit": "US dollars for a million tokens"}, indent=2)
    TABLE.write_text(f'{text[:-2]},\n  "models": {{\n' + ",\n".join(lines) + "\n  }\n}\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
