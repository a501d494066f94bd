"""Questions with one right answer, about the small world and simple sums.

A maker draws one `Ask`. Every ask is worded in one of several ways; some (subject, wording) pairs
are kept back for held-out prompts (`world.kept_back`), so that a held-out prompt is never trained
on, while its subject is known from other wordings.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tensorfold.tools.tiny import world as w


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """`reply` is what is trained; any of `listed` counts as right; `thought` may lead to it."""

    text: str
    reply: str
    listed: tuple[str, ...]
    thought: str = ""
    held: bool = False


def ask(
    draw: random.Random,
    subject: str,
    wordings: list[str],
    reply: str,
    *short: str,
    thought: str = "",
) -> Ask:
    index = draw.randrange(len(wordings))
    return Ask(
        text=wordings[index],
        reply=reply,
        listed=(reply, *short),
        thought=thought,
        held=w.kept_back(subject, index),
    )


PERSON_WORDINGS = {
    "town": ["Where does {n} live?", "In which town does {n} live?", "Which town is {n} from?",
             "What is {n}'s home town?", "Tell me where {n} lives."],
    "job": ["What does {n} do for a living?", "What is {n}'s job?", "What work does {n} do?",
            "Tell me {n}'s job.", "What job does {n} have?"],
    "pet": ["What pet does {n} have?", "What animal does {n} keep?", "Which pet does {n} own?",
            "What kind of pet is {n}'s?", "Tell me what pet {n} has."],
    "pet_name": ["What is the name of {n}'s pet?", "What is {n}'s pet called?",
                 "How is {n}'s pet called?", "Tell me the name of {n}'s pet.",
                 "What did {n} name the pet?"],
    "colour": ["What is {n}'s favourite colour?", "Which colour does {n} like best?",
               "What colour does {n} like most?", "Tell me {n}'s favourite colour.",
               "What is {n}'s favorite color?"],
    "food": ["What is {n}'s favourite food?", "What does {n} like to eat?",
             "Which food does {n} like best?", "Tell me {n}'s favourite food.",
             "What food does {n} love?"],
    "hobby": ["What is {n}'s hobby?", "What does {n} do for fun?",
              "What does {n} like to do on Sundays?", "Tell me {n}'s hobby.",
              "Which hobby does {n} have?"],
    "age": ["How old is {n}?", "What is {n}'s age?", "What age is {n}?", "Tell me how old {n} is.",
            "How many years old is {n}?"],
}  # fmt: skip
PERSON_REPLIES = {
    "town": "{n} lives in {v}.",
    "job": "{n} is {v}.",
    "pet": "{n} has {v}.",
    "pet_name": "{n}'s pet is called {v}.",
    "colour": "{n}'s favourite colour is {v}.",
    "food": "{n} likes {v} best.",
    "hobby": "{n}'s hobby is {v}.",
    "age": "{n} is {v} years old.",
}


def person(draw: random.Random) -> Ask:
    who = draw.choice(w.PEOPLE)
    field = draw.choice(list(PERSON_WORDINGS))
    value = str(getattr(who, field))
    shown = w.a(value) if field in ("job", "pet") else value
    wordings = [text.format(n=who.name) for text in PERSON_WORDINGS[field]]
    reply = PERSON_REPLIES[field].format(n=who.name, v=shown)
    return ask(draw, f"{field} {who.name}", wordings, reply, value, shown)


def pet_owner(draw: random.Random) -> Ask:
    who = draw.choice(w.PEOPLE)
    wordings = [f"Whose pet is {who.pet_name}?", f"Who owns {who.pet_name}?",
                f"Who does {who.pet_name} belong to?",
                f"Who has a pet called {who.pet_name}?"]  # fmt: skip
    reply = f"{who.pet_name} is {who.name}'s {who.pet}."
    return ask(draw, f"owner {who.name}", wordings, reply, who.name, f"{who.name}.")


def older(draw: random.Random) -> Ask:
    one, two = draw.sample(w.PEOPLE, 2)
    old = one if one.age > two.age else two
    wordings = [f"Who is older, {one.name} or {two.name}?",
                f"Between {one.name} and {two.name}, who is older?"]  # fmt: skip
    thought = f"{one.name} is {one.age}. {two.name} is {two.age}. {old.name} is older."
    return ask(
        draw, f"{one.name} {two.name}", wordings, f"{old.name} is older.", old.name, thought=thought
    )


def capital(draw: random.Random) -> Ask:
    land, city = draw.choice(list(w.CAPITALS.items()))
    wordings = [f"What is the capital of {land}?", f"Which city is the capital of {land}?",
                f"What is {land}'s capital?", f"Tell me the capital of {land}.",
                f"Name the capital of {land}.", f"capital of {land}?",
                f"Do you know the capital of {land}?"]  # fmt: skip
    return ask(draw, f"capital {land}", wordings, f"The capital of {land} is {city}.", city)


def capital_of(draw: random.Random) -> Ask:
    land, city = draw.choice(list(w.CAPITALS.items()))
    wordings = [f"{city} is the capital of which country?", f"In which country is {city}?",
                f"Which country has {city} as its capital?",
                f"What country is {city} in?"]  # fmt: skip
    return ask(draw, f"land {city}", wordings, f"{city} is the capital of {land}.", land)


def animal(draw: random.Random) -> Ask:
    name, (sound, legs, young, home) = draw.choice(list(w.ANIMALS.items()))
    field = draw.randrange(4)
    the = w.a(name)
    if field == 0:
        wordings = [f"What sound does {the} make?", f"What noise does {the} make?",
                    f"How does {the} sound?", f"Which sound does {the} make?"]  # fmt: skip
        return ask(draw, f"sound {name}", wordings, f"{the.capitalize()} {sound}.", sound)
    if field == 1:
        number = w.NUMBERS[legs]
        wordings = [f"How many legs does {the} have?", f"What number of legs does {the} have?",
                    f"How many legs has {the}?", f"Tell me how many legs {the} has."]  # fmt: skip
        reply = f"{the.capitalize()} has {number} legs."
        return ask(draw, f"legs {name}", wordings, reply, number, str(legs))
    if field == 2:
        wordings = [f"What is a young {name} called?", f"What do you call a baby {name}?",
                    f"What is the young of {the} called?", f"What is a baby {name}?"]  # fmt: skip
        reply = f"A young {name} is called {w.a(young)}."
        return ask(draw, f"young {name}", wordings, reply, young, w.a(young))
    wordings = [f"Where does {the} live?", f"Where is the home of {the}?",
                f"What is the home of {the}?", f"Tell me where {the} lives."]  # fmt: skip
    return ask(draw, f"home {name}", wordings, f"{the.capitalize()} lives in {home}.", home)


def colour(draw: random.Random) -> Ask:
    thing, value = draw.choice(list(w.THINGS.items()))
    wordings = [f"What colour is {thing}?", f"Which colour is {thing}?", f"What color is {thing}?",
                f"Tell me the colour of {thing}.", f"What is the colour of {thing}?"]  # fmt: skip
    reply = f"{thing.capitalize()} is {value}."
    return ask(draw, f"colour {thing}", wordings, reply, value)


def opposite(draw: random.Random) -> Ask:
    pair = draw.choice(w.OPPOSITES.split(",")).split()
    one, other = pair if draw.random() < 0.5 else pair[::-1]
    wordings = [f"What is the opposite of {one}?", f"Tell me the opposite of {one}.",
                f"Give me the opposite of {one}.", f'What is the opposite of the word "{one}"?',
                f"Which word is the opposite of {one}?", f"opposite of {one}?"]  # fmt: skip
    return ask(draw, f"opposite {one}", wordings, f"The opposite of {one} is {other}.", other)


def form(draw: random.Random) -> Ask:
    if draw.random() < 0.5:
        one, many = draw.choice(list(w.PLURALS.items()))
        wordings = [f"What is the plural of {one}?", f"Tell me the plural of {one}.",
                    f'What is the plural of "{one}"?', f"Give the plural of {one}."]  # fmt: skip
        return ask(draw, f"plural {one}", wordings, f"The plural of {one} is {many}.", many)
    now, past = draw.choice(list(w.PASTS.items()))
    wordings = [f"What is the past tense of {now}?", f"Tell me the past tense of {now}.",
                f'What is the past tense of "{now}"?',
                f"Give the past tense of {now}."]  # fmt: skip
    return ask(draw, f"past {now}", wordings, f"The past tense of {now} is {past}.", past)


def calendar(draw: random.Random) -> Ask:
    days = draw.random() < 0.6
    names, kind = (w.DAYS, "day") if days else (w.MONTHS, "month")
    i, after = draw.randrange(len(names)), draw.random() < 0.5
    this, that = names[i], names[(i + (1 if after else -1)) % len(names)]
    side = "after" if after else "before"
    wordings = [f"Which {kind} comes {side} {this}?", f"What {kind} comes {side} {this}?",
                f"What is the {kind} {side} {this}?", f"Tell me the {kind} {side} {this}.",
                f"Name the {kind} that comes {side} {this}."]  # fmt: skip
    if days:
        wordings.append(
            f"If today is {this}, what day {'is tomorrow' if after else 'was yesterday'}?"
        )
    return ask(draw, f"{side} {this}", wordings, f"The {kind} {side} {this} is {that}.", that)


def group(draw: random.Random) -> Ask:
    kinds = list(w.GROUPS)
    kind = draw.choice(kinds)
    item, wrong = draw.choice(w.GROUPS[kind]), draw.choice([k for k in kinds if k != kind])
    while item in w.GROUPS[wrong]:
        wrong = draw.choice([k for k in kinds if k != kind])
    first, second = draw.sample([kind, wrong], 2)
    wordings = [f"Is {item} {w.a(first)} or {w.a(second)}?",
                f"What is {item}: {w.a(first)} or {w.a(second)}?"]  # fmt: skip
    reply = f"{item.capitalize()} is {w.a(kind)}."
    if item == "orange":
        return group(draw)
    return ask(draw, f"group {item} {first} {second}", wordings, reply, kind, w.a(kind))


def yes_no(draw: random.Random) -> Ask:
    kind = draw.choice(list(w.GROUPS))
    item = draw.choice(w.GROUPS[kind])
    claim = kind if draw.random() < 0.5 else draw.choice(list(w.GROUPS))
    right = item in w.GROUPS[claim]
    wordings = [f"Is {item} {w.a(claim)}?", f"Would you say {item} is {w.a(claim)}?",
                f"Is it true that {item} is {w.a(claim)}?"]  # fmt: skip
    reply = f"Yes, {item} is {w.a(claim)}." if right else f"No, {item} is not {w.a(claim)}."
    return ask(draw, f"is {item} {claim}", wordings, reply, reply.split(",")[0])


def letters(draw: random.Random) -> Ask:
    word = draw.choice(w.SPELL)
    field = draw.randrange(4)
    spelt = "-".join(word)
    if field == 0:
        wordings = [f"How do you spell {word}?", f'Spell the word "{word}".', f"Spell {word}.",
                    f"Please spell {word} for me.", f"Can you spell {word}?"]  # fmt: skip
        return ask(draw, f"spell {word}", wordings, spelt.upper(), spelt, " ".join(word))
    if field == 1:
        number = len(word)
        wordings = [f"How many letters are in {word}?", f'How many letters does "{word}" have?',
                    f"Count the letters in {word}.", f"How long is the word {word}?"]  # fmt: skip
        thought = f"{spelt}: that is {number}."
        reply = f"The word {word} has {number} letters."
        return ask(
            draw, f"length {word}", wordings, reply, str(number), w.NUMBERS[number], thought=thought
        )
    end, letter = ("first", word[0]) if field == 2 else ("last", word[-1])
    wordings = [f"What is the {end} letter of {word}?", f"Tell me the {end} letter of {word}.",
                f'Which letter is the {end} in "{word}"?',
                f"What is {word}'s {end} letter?"]  # fmt: skip
    reply = f"The {end} letter of {word} is {letter.upper()}."
    return ask(draw, f"{end} {word}", wordings, reply, letter.upper(), letter)


def odd_one(draw: random.Random) -> Ask:
    kind = draw.choice(list(w.GROUPS))
    items = draw.sample(w.GROUPS[kind], 3)
    odd_kind = draw.choice([k for k in w.GROUPS if k != kind])
    odd = draw.choice([i for i in w.GROUPS[odd_kind] if i not in w.GROUPS[kind]])
    mixed = [*items, odd]
    draw.shuffle(mixed)
    shown = ", ".join(mixed)
    wordings = [f"Which one does not belong: {shown}?", f"Find the odd one out: {shown}."]
    reply = f"{odd.capitalize()} does not belong. The others are {kind}s."
    return ask(
        draw, f"odd {odd} {items[0]}", wordings, reply, odd, f"{odd.capitalize()} does not belong."
    )


MAKERS: tuple[tuple[Callable[[random.Random], Ask], float], ...] = (
    (person, 5.0),
    (pet_owner, 1.0),
    (older, 1.0),
    (capital, 1.5),
    (capital_of, 1.0),
    (animal, 1.5),
    (colour, 1.0),
    (opposite, 1.2),
    (form, 0.8),
    (calendar, 1.2),
    (group, 0.7),
    (yes_no, 0.8),
    (letters, 2.0),
    (odd_one, 0.7),
)
