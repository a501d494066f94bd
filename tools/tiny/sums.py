"""Sums, counting and short lists: questions whose answer is worked out, not remembered."""

import random
from collections.abc import Callable

from tensorfold.tools.tiny import world as w
from tensorfold.tools.tiny.asks import Ask, ask


def sum_of_two(draw: random.Random) -> Ask:
    sign = draw.choice("++--x")
    if sign == "x":
        one, two = draw.randint(0, 10), draw.randint(0, 10)
        value, word, mark = one * two, "times", "*"
    elif sign == "+":
        one, two = draw.randint(0, 20), draw.randint(0, 20)
        value, word, mark = one + two, "plus", "+"
    else:
        one = draw.randint(0, 30)
        two = draw.randint(0, one)
        value, word, mark = one - two, "minus", "-"
    wordings = [f"What is {one} {word} {two}?", f"What is {one} {mark} {two}?",
                f"How much is {one} {word} {two}?", f"{one} {mark} {two} = ?",
                f"Calculate {one} {mark} {two}.", f"{one} {word} {two}?"]  # fmt: skip
    if sign == "+":
        wordings += [f"Add {one} and {two}.", f"What is the sum of {one} and {two}?"]
    elif sign == "-":
        wordings += [f"Take {two} away from {one}.", f"Subtract {two} from {one}."]
    else:
        wordings += [f"Multiply {one} by {two}.", f"What is the product of {one} and {two}?"]
    reply = f"{one} {word} {two} is {value}."
    return ask(
        draw, f"{one} {mark} {two}", wordings, reply, str(value), f"{one} {mark} {two} = {value}"
    )


def compare(draw: random.Random) -> Ask:
    one, two = draw.sample(range(100), 2)
    big = draw.random() < 0.5
    value, word = (max(one, two), "larger") if big else (min(one, two), "smaller")
    wordings = [f"Which number is {word}, {one} or {two}?", f"Which is {word}: {one} or {two}?"]
    return ask(draw, f"{one} {two} {word}", wordings, f"{value} is {word}.", str(value))


def next_number(draw: random.Random) -> Ask:
    number, after = draw.randint(1, 100), draw.random() < 0.6
    side, value = ("after", number + 1) if after else ("before", number - 1)
    wordings = [f"Which number comes {side} {number}?", f"What number comes {side} {number}?",
                f"Tell me the number {side} {number}."]  # fmt: skip
    reply = f"The number {side} {number} is {value}."
    return ask(draw, f"{side} {number}", wordings, reply, str(value))


def parity(draw: random.Random) -> Ask:
    number = draw.randint(0, 100)
    value = "odd" if number % 2 else "even"
    wordings = [f"Is {number} odd or even?", f"Is the number {number} even or odd?"]
    return ask(draw, f"parity {number}", wordings, f"{number} is {value}.", value)


def in_words(draw: random.Random) -> Ask:
    number = draw.randrange(len(w.NUMBERS))
    wordings = [f"Write the number {number} as a word.", f"How do you write {number} in words?",
                f"What is {number} in words?"]  # fmt: skip
    return ask(
        draw, f"word {number}", wordings, w.NUMBERS[number].capitalize() + ".", w.NUMBERS[number]
    )


def story_sum(draw: random.Random) -> Ask:
    name, thing = draw.choice(w.NAMES + w.MORE_NAMES), draw.choice(
        "apples books coins eggs stamps shells pencils cakes marbles flowers".split()
    )  # fmt: skip
    start, more = draw.randint(2, 12), draw.randint(1, 9)
    if draw.random() < 0.4:
        left = start + more
        text = f"{name} has {start} {thing} and gets {more} more."
        thought = f"{start} + {more} = {left}."
    elif draw.random() < 0.5:
        more = min(more, start)
        left = start - more
        text = f"{name} has {start} {thing} and gives away {more}."
        thought = f"{start} - {more} = {left}."
    else:
        away = draw.randint(1, start + more)
        left = start + more - away
        text = f"{name} has {start} {thing}, gets {more} more and then loses {away}."
        thought = f"{start} + {more} = {start + more}. {start + more} - {away} = {left}."
    asks = [f"How many {thing} does {name} have now?", f"How many {thing} are left?",
            f"How many {thing} is that?"]  # fmt: skip
    wordings = [f"{text} {end}" for end in asks]
    noun = thing[:-1] if left == 1 else thing
    reply = f"{name} has {left} {noun}."
    return ask(draw, text, wordings, reply, str(left), f"{left} {noun}", thought=thought)


def count_up(draw: random.Random) -> Ask:
    low, span = draw.randint(0, 20), draw.randint(2, 10)
    up = [str(n) for n in range(low, low + span + 1)]
    if draw.random() < 0.3:
        up.reverse()
    wordings = [f"Count from {up[0]} to {up[-1]}.", f"Please count from {up[0]} to {up[-1]}.",
                f"Can you count from {up[0]} to {up[-1]}?"]  # fmt: skip
    reply = ", ".join(up)
    return ask(draw, f"count {up[0]} {up[-1]}", wordings, reply, " ".join(up))


def from_list(draw: random.Random) -> Ask:
    pool = draw.choice([w.WORDS, w.NAMES, w.COLOURS, w.FOODS])
    items = draw.sample(pool, draw.randint(3, 5))
    shown, field = ", ".join(items), draw.randrange(4)
    if field == 0:
        wordings = [f"How many items are in this list: {shown}?", f"Count these: {shown}."]
        number = len(items)
        return ask(
            draw, shown, wordings, f"There are {number} items.", str(number), w.NUMBERS[number]
        )
    if field == 1:
        back = ", ".join(items[::-1])
        wordings = [f"Reverse this list: {shown}.", f"Say these backwards: {shown}."]
        return ask(draw, shown, wordings, back + ".")
    end, item = ("first", items[0]) if field == 2 else ("last", items[-1])
    wordings = [f"What is the {end} item in this list: {shown}?", f"Which comes {end}: {shown}?",
                f"Here is a list: {shown}. Tell me the {end} one."]  # fmt: skip
    return ask(draw, shown, wordings, f"The {end} one is {item}.", item)


def repeat(draw: random.Random) -> Ask:
    words = " ".join(draw.choice(w.WORDS) for _ in range(draw.randint(1, 4)))
    if draw.random() < 0.3:
        words = w.made_up(draw)
    wordings = [f"Say {words}.", f"Repeat after me: {words}", f'Say "{words}".',
                f"Please repeat: {words}", f"Write exactly: {words}"]  # fmt: skip
    return ask(draw, words, wordings, words, words + ".")


MAKERS: tuple[tuple[Callable[[random.Random], Ask], float], ...] = (
    (sum_of_two, 4.0),
    (compare, 1.0),
    (next_number, 0.8),
    (parity, 0.7),
    (in_words, 0.3),
    (story_sum, 1.5),
    (count_up, 0.7),
    (from_list, 1.5),
    (repeat, 1.5),
)
