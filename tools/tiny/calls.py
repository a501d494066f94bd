"""Tools, requests that need one, its call, its result and the answer after it."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from tensorfold.tools.tiny import world as w
from tensorfold.tools.tiny.objects import text_value

VERBS = {
    "get": "Get", "find": "Find", "create": "Create", "delete": "Delete", "update": "Update",
    "send": "Send", "book": "Book", "check": "Check", "open": "Open", "start": "Start",
    "stop": "Stop", "add": "Add", "list": "List", "show": "Show", "order": "Order",
    "cancel": "Cancel", "search": "Search", "rate": "Rate", "move": "Move", "copy": "Copy",
}  # fmt: skip
NOUNS = (
    "weather recipe table message ticket account invoice report photo song movie book hotel "
    "flight train taxi meeting reminder note task file folder playlist contact address order "
    "package payment room door light alarm timer garden game score map route shop menu"
).split()
PARAMETERS = {
    "city": "Name of the city",
    "name": "Name of the item",
    "title": "Title of the item",
    "query": "What to look for",
    "date": "Day of the week",
    "color": "Colour to use",
    "user": "User name",
    "language": "Language to use",
    "category": "Kind of item",
    "path": "Path of the file",
    "text": "Text to use",
    "count": "How many",
    "id": "Number of the item",
    "minutes": "Length in minutes",
    "limit": "Most results",
    "price": "Price",
    "urgent": "Whether it is urgent",
    "loud": "Whether to play loud",
}
NUMBERS = ("count", "id", "minutes", "limit", "price")
FLAGS = ("urgent", "loud")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request for a tool: `calls` are (name, arguments) in order."""

    text: str
    tools: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]]
    results: list[str] = field(default_factory=list)
    answer: str = ""
    held: bool = False


def tool(name: str, about: str, parameters: dict[str, str], required: list[str]) -> dict[str, Any]:
    def schema(key: str) -> dict[str, str]:
        kind = "integer" if key in NUMBERS else "boolean" if key in FLAGS else "string"
        return {"type": kind, "description": parameters[key]}

    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {key: schema(key) for key in parameters},
                "required": required,
            },
        },
    }


def value_of(draw: random.Random, key: str) -> Any:
    if key in NUMBERS:
        return draw.choice([draw.randint(1, 12), draw.randint(1, 99), draw.randint(100, 9999)])
    if key in FLAGS:
        return draw.random() < 0.5
    if key == "city":
        return draw.choice(w.CITIES) if draw.random() < 0.8 else w.made_up(draw).capitalize()
    if key == "date":
        return draw.choice(w.DAYS)
    if key == "color":
        return draw.choice(w.COLOURS)
    if key == "language":
        return draw.choice("English French German Spanish Italian Swedish Latin Greek".split())
    if key == "path":
        return (
            "/"
            + "/".join(draw.sample(w.WORDS, draw.randint(1, 2)))
            + draw.choice([".txt", ".md", ""])
        )
    if key == "user":
        return draw.choice(w.NAMES + w.MORE_NAMES)
    return text_value(draw, "title" if key in ("title", "text", "query") else "label")


def composed_name(draw: random.Random) -> tuple[str, str, str]:
    verb, noun = draw.choice(list(VERBS)), draw.choice(NOUNS)
    roll = draw.random()
    if roll < 0.8:
        return verb, noun, f"{verb}_{noun}"
    return verb, noun, f"{verb}{noun.capitalize()}" if roll < 0.9 else f"{verb}-{noun}"


def composed(draw: random.Random, name: tuple[str, str, str]) -> dict[str, Any]:
    verb, noun, full = name
    keys = draw.sample(list(PARAMETERS), draw.choice([0, 1, 1, 1, 2, 2, 3, 4]))
    about = f"{VERBS[verb]} {w.a(noun)}" + draw.choice(["", ".", " for the user"])
    required = keys[: draw.randint(1, len(keys))] if keys else []
    return tool(full, about, {key: PARAMETERS[key] for key in keys}, required)


def composed_job(draw: random.Random) -> Job:
    count = draw.choice([1, 1, 2, 2, 3, 4])
    names: list[tuple[str, str, str]] = []
    while len(names) < count:
        name = composed_name(draw)
        if all(name[:2] != other[:2] for other in names):
            names.append(name)
    tools = [composed(draw, name) for name in names]
    pick = draw.randrange(count)
    verb, noun, full = names[pick]
    keys = list(tools[pick]["function"]["parameters"]["properties"])
    given = {key: value_of(draw, key) for key in keys}
    pairs = w.join([f"{key} {_said(value)}" for key, value in given.items()]) if given else ""
    equals = ", ".join(f"{key} = {_said(value)}" for key, value in given.items())
    index = draw.randrange(6)
    if index == 0:
        text = f"{VERBS[verb]} {w.a(noun)}" + (f" with {pairs}." if pairs else ".")
    elif index == 1:
        text = f"Please {verb} the {noun}" + (f", {pairs}." if pairs else ".")
    elif index == 2:
        text = f"Can you {verb} {w.a(noun)}" + (f" with {pairs}?" if pairs else "?")
    elif index == 3:
        text = f"I want to {verb} {w.a(noun)}." + (f" Use {equals}." if pairs else "")
    elif index == 4:
        text = f"Use {full}" + (f" with {pairs}." if pairs else ".")
    else:
        text = f"Call the tool {full}" + (f": {equals}" if pairs else " now.")
    done = {"status": "ok", "id": draw.randint(1, 9999)}
    result = json.dumps(done) if draw.random() < 0.7 else "ok"
    answer = f"Done. The number is {done['id']}." if result != "ok" else "Done."
    held = w.kept_back("tool", index, verb, noun)
    return Job(
        text=text, tools=tools, calls=[(full, given)], results=[result], answer=answer, held=held
    )


def _said(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


WELL_KNOWN = {
    "get_weather": ("Get the weather in a city", {"city": "Name of the city"}),
    "get_current_weather": (
        "Get the current weather",
        {"location": "The city", "unit": "celsius or fahrenheit"},
    ),
    "get_time": ("Get the time in a city", {"city": "Name of the city"}),
    "search_web": ("Search the web", {"query": "What to search for"}),
    "calculate": ("Work out an expression", {"expression": "The expression"}),
    "add": ("Add two numbers", {"count": "First number", "id": "Second number"}),
    "set_timer": ("Set a timer", {"minutes": "Length in minutes"}),
    "send_email": ("Send an email", {"to": "Who gets it", "subject": "Subject line"}),
    "play_song": ("Play a song", {"title": "Title of the song"}),
    "translate": ("Translate a text", {"text": "The text", "language": "Language to translate to"}),
    "read_file": ("Read a file", {"path": "Path of the file"}),
    "book_table": ("Book a table", {"city": "Name of the city", "count": "How many people"}),
}  # fmt: skip


def known_job(draw: random.Random) -> Job:
    """Requests as people put them, for tools that everyone's examples have."""
    city, sky = value_of(draw, "city"), draw.choice(["sunny", "rainy", "cloudy", "windy", "snowy"])
    words, minutes, degrees = value_of(draw, "title"), draw.randint(1, 60), draw.randint(-10, 35)
    place = draw.choice(["city", "location"])
    kind = draw.randrange(9)
    about: dict[str, str] | None = None
    if kind <= 1:
        name = draw.choice(["get_weather", "get_weather", "get_current_weather", "weather"])
        texts = [f"What is the weather in {city}?", f"How is the weather in {city}?",
                 f"What's the weather like in {city}?", f"Is it raining in {city}?",
                 f"Tell me the weather in {city}.",
                 f"What is the weather in {city} today?"]  # fmt: skip
        about = {place: f"The {place}"}
        given: dict[str, Any] = {place: city}
        result = json.dumps({place: city, "temperature": degrees, "sky": sky})
        answer = f"In {city} it is {sky} with {degrees} degrees."
        if draw.random() < 0.3:
            result, answer = (
                f"{degrees} degrees, {sky}",
                f"In {city} it is {sky} with {degrees} degrees.",
            )
    elif kind == 2:
        name, given = "get_time", {"city": city}
        clock = f"{draw.randint(0, 23)}:{draw.randint(10, 59)}"
        texts = [f"What time is it in {city}?", f"Tell me the time in {city}."]
        result, answer = json.dumps({"time": clock}), f"It is {clock} in {city}."
    elif kind == 3:
        name, given = "search_web", {"query": words}
        found = value_of(draw, "title")
        texts = [
            f"Search the web for {words}.",
            f"Look up {words} on the web.",
            f"Search for {words}.",
        ]
        result, answer = json.dumps({"result": found}), f"I found this: {found}."
    elif kind == 4:
        one, two, sign = draw.randint(1, 99), draw.randint(1, 99), draw.choice("+-*")
        name, given = "calculate", {"expression": f"{one} {sign} {two}"}
        value = {"+": one + two, "-": one - two, "*": one * two}[sign]
        texts = [f"Calculate {one} {sign} {two}.", f"What is {one} {sign} {two}?"]
        result, answer = str(value), f"{one} {sign} {two} = {value}."
    elif kind == 5:
        name, given = "set_timer", {"minutes": minutes}
        texts = [f"Set a timer for {minutes} minutes.", f"Start a timer of {minutes} minutes."]
        result, answer = "ok", f"The timer is set to {minutes} minutes."
    elif kind == 6:
        to, subject = value_of(draw, "user"), value_of(draw, "title")
        name, given = "send_email", {"to": to, "subject": subject}
        texts = [f"Send an email to {to} about {subject}.", f"Write {to} an email about {subject}."]
        result, answer = "sent", f"I sent the email to {to}."
    elif kind == 7:
        name, given = "read_file", {"path": value_of(draw, "path")}
        texts = [f"Read the file {given['path']}.", f"Show me {given['path']}."]
        result, answer = words, f"The file says: {words}."
    else:
        name, given = "play_song", {"title": words}
        texts = [f"Play the song {words}.", f"Please play {words}."]
        result, answer = "ok", f"Now playing {words}."
    title, usual = WELL_KNOWN.get(name, ("Get the weather", {}))
    parameters = about or usual
    tools = [tool(name, title, parameters, list(parameters)[:1])]
    others = [other for other in WELL_KNOWN if other != name and "weather" not in other]
    tools += [
        tool(other, *WELL_KNOWN[other], list(WELL_KNOWN[other][1])[:1])
        for other in draw.sample(others, draw.choice([0, 0, 1, 2]))
    ]
    if draw.random() < 0.3:
        tools.append(composed(draw, composed_name(draw)))
    draw.shuffle(tools)
    index = draw.randrange(len(texts))
    held = w.kept_back("known", kind, index, next(iter(given.values())))
    calls = [(name, given)]
    return Job(
        text=texts[index], tools=tools, calls=calls, results=[result], answer=answer, held=held
    )


def pair_job(draw: random.Random) -> Job:
    """Two calls of one tool in one reply."""
    one, two = draw.sample(w.CITIES, 2)
    first, second = draw.randint(-10, 35), draw.randint(-10, 35)
    name, place = draw.choice(["get_weather", "get_temperature"]), draw.choice(["city", "location"])
    texts = [
        f"What is the weather in {one} and in {two}?",
        f"Compare the weather in {one} and {two}.",
    ]
    index = draw.randrange(2)
    return Job(
        text=texts[index],
        tools=[tool(name, "Get the weather", {place: f"The {place}"}, [place])],
        calls=[(name, {place: one}), (name, {place: two})],
        results=[json.dumps({"temperature": first}), json.dumps({"temperature": second})],
        answer=f"It is {first} degrees in {one} and {second} degrees in {two}.",
        held=w.kept_back("pair", index, one, two),
    )


def job(draw: random.Random) -> Job:
    roll = draw.random()
    return composed_job(draw) if roll < 0.6 else known_job(draw) if roll < 0.92 else pair_job(draw)
