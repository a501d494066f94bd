"""Requests for a JSON object, and the object."""

import json
import random
from dataclasses import dataclass

from tensorfold.tools.tiny import world as w

TEXT_KEYS = (
    "name title city country author colour status category language genre brand model street "
    "owner role team unit currency email label kind type code artist album subject company job "
    "material shape season food drink animal planet sport hobby mood topic summary description "
    "word answer first_name last_name user file path format theme priority"
).split()
NUMBER_KEYS = (
    "age year price count quantity score rating height width weight pages id level size total "
    "temperature distance minutes hours floor rank population speed stock number seats points"
).split()
FLAG_KEYS = (
    "active available married enabled open paid public member visible done valid new".split()
)
LIST_KEYS = "tags colours items friends languages toppings members words sizes cities".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    text: str
    value: dict[str, object]
    held: bool

    @property
    def reply(self) -> str:
        return json.dumps(self.value, ensure_ascii=False)


def text_value(draw: random.Random, key: str) -> str:
    named = {"city": w.CITIES, "country": list(w.CAPITALS), "colour": w.COLOURS, "food": w.FOODS,
             "job": w.JOBS, "hobby": w.HOBBIES, "animal": list(w.ANIMALS)}  # fmt: skip
    if key in named:
        return draw.choice(named[key])
    roll = draw.random()
    if key in ("name", "author", "owner", "artist", "user", "first_name", "last_name"):
        first = draw.choice(w.NAMES + w.MORE_NAMES)
        return first if roll < 0.6 else f"{first} {w.made_up(draw).capitalize()}"
    if key == "email":
        return f"{draw.choice(w.MORE_NAMES).lower()}@{draw.choice(w.WORDS)}.com"
    if key in ("title", "album", "summary", "description", "topic") or roll < 0.3:
        words = [draw.choice(w.WORDS) for _ in range(draw.randint(1, 3))]
        return " ".join(words).capitalize() if roll < 0.5 else " ".join(words).title()
    return draw.choice(w.WORDS) if roll < 0.85 else w.made_up(draw)


def field(draw: random.Random, used: set[str]) -> tuple[str, object]:
    roll = draw.random()
    keys = TEXT_KEYS if roll < 0.55 else NUMBER_KEYS if roll < 0.85 else FLAG_KEYS
    if roll > 0.95:
        keys = LIST_KEYS
    key = draw.choice([k for k in keys if k not in used])
    if keys is TEXT_KEYS:
        return key, text_value(draw, key)
    if keys is NUMBER_KEYS:
        return key, draw.choice([draw.randint(0, 20), draw.randint(0, 99), draw.randint(100, 2030)])
    if keys is FLAG_KEYS:
        return key, draw.random() < 0.5
    source = w.CITIES if key == "cities" else w.COLOURS if key == "colours" else w.WORDS
    return key, draw.sample(source, draw.randint(2, 3))


def said(value: object) -> str:
    """A value as a person writes it in a request."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def wanted(draw: random.Random) -> Wanted:
    roll = draw.random()
    if roll < 0.12:
        return about_person(draw)
    if roll < 0.2:
        return about_fact(draw)
    used: set[str] = set()
    value: dict[str, object] = {}
    for _ in range(draw.randint(1, 5)):
        key, part = field(draw, used)
        used.add(key)
        value[key] = part
    flat = not any(isinstance(part, list) for part in value.values())
    index = draw.randrange(10 if flat else 6)
    text = worded(draw, value, index)
    return Wanted(text=text, value=value, held=w.kept_back("json", index, *value))


def worded(draw: random.Random, value: dict[str, object], index: int) -> str:
    quote = draw.random() < 0.5

    def shown(part: object) -> str:
        return f'"{part}"' if quote and isinstance(part, str) else said(part)

    keys = ", ".join(value)
    pairs = w.join([f"{key} {shown(part)}" for key, part in value.items()])
    lines = "\n".join(f"{key}: {said(part)}" for key, part in value.items())
    equals = "; ".join(f"{key} = {said(part)}" for key, part in value.items())
    if index == 0:
        return f"Give me a JSON object with {pairs}."
    if index == 1:
        return f"Write a JSON object with {pairs}."
    if index == 2:
        return f"Turn this into a JSON object:\n{lines}"
    if index == 3:
        return f"Make JSON from this: {equals}."
    if index == 4:
        return f"Reply with only a JSON object. {equals}"
    if index == 5:
        return f"Return JSON with the keys {keys}. {equals}."
    bare = ", ".join(said(part) for part in value.values())
    if index == 6:
        return f"Write a JSON object with the keys {keys} for: {bare}."
    if index == 7:
        return f"Give me JSON with the keys {keys} and the values {bare}."
    if index == 8:
        return f"I need a JSON object. Keys: {keys}. Values: {bare}."
    return f"Put {bare} into a JSON object with the keys {keys}."


def about_person(draw: random.Random) -> Wanted:
    who = draw.choice(w.PEOPLE)
    fields = ["town", "job", "pet", "pet_name", "colour", "food", "hobby", "age"]
    keys = ["name", *draw.sample(fields, draw.randint(1, 4))]
    shown, index = ", ".join(keys), draw.randrange(3)
    text = (
        f"Give me a JSON object about {who.name} with the keys {shown}.",
        f"Describe {who.name} as JSON. Keys: {shown}.",
        f"Write JSON with {shown} of {who.name}.",
    )[index]
    value = {key: getattr(who, key) for key in keys}
    return Wanted(text=text, value=value, held=w.kept_back("json", index, who.name, keys[1]))


def about_fact(draw: random.Random) -> Wanted:
    if draw.random() < 0.5:
        land, city = draw.choice(list(w.CAPITALS.items()))
        value: dict[str, object] = {"country": land, "capital": city}
        texts = (
            f"What is the capital of {land}? Answer in JSON with the keys country and capital.",
            f"Give me JSON with the keys country and capital for {land}.",
            f"Answer as a JSON object with country and capital: what is the capital of {land}?",
        )
    else:
        one, two = draw.randint(0, 12), draw.randint(0, 12)
        value = (
            {"sum": one + two} if draw.random() < 0.5 else {"a": one, "b": two, "sum": one + two}
        )
        shown = w.join(list(value))
        texts = (
            f"What is {one} plus {two}? "
            f"Answer in JSON with the key{'s' * (len(value) > 1)} {shown}.",
            f"Add {one} and {two} and give me a JSON object with {shown}.",
            f"Reply as a JSON object with {shown}: how much is {one} + {two}?",
        )
    index = draw.randrange(3)
    held = w.kept_back("json", index, *value.values())
    return Wanted(text=texts[index], value=value, held=held)
