"""Small talk, short stories and verses, and what is told and asked again within a chat."""

import random

from tensorfold.tools.tiny import world as w

TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("Hello!", "Hello", "Hi", "Hi!", "Hi there!", "Hey", "Hey there", "Good day!", "hello", "hi"),
     ("Hello! How can I help you?",)),
    (("Good morning!", "Good morning", "Morning!"), ("Good morning! What can I do for you?",)),
    (("Good evening!", "Good evening"), ("Good evening! What can I do for you?",)),
    (("How are you?", "How are you today?", "How do you do?", "How is it going?", "Are you well?"),
     ("I am fine, thank you. How are you?",)),
    (("I am fine.", "I'm fine, thanks.", "I am well, thank you.", "Very well, thanks!"),
     ("I am glad to hear that.",)),
    (("Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.",
      "Are you a robot?", "Are you an AI?", "What model are you?"),
     ("I am a tiny language model. I know a small world and I like short answers.",)),
    (("What is your name?", "What's your name?", "Do you have a name?", "How are you called?"),
     ("My name is Tiny.",)),
    (("What can you do?", "How can you help me?", "What do you know?", "Help", "Help me."),
     ("I can answer simple questions, tell short stories, write JSON and call tools.",)),
    (("Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot.", "thanks", "Great, thanks!"),
     ("You are welcome!",)),
    (("Goodbye!", "Bye!", "Bye", "See you later!", "Good night!", "See you."),
     ("Goodbye! Have a nice day.",)),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Another joke, please."),
     ("Why did the hen cross the road? To get to the other side.",
      "What is brown and sticky? A stick.",
      "Why is six afraid of seven? Because seven eight nine.")),
    (("Do you like music?", "Do you like chess?", "Do you like soup?", "Do you have feelings?"),
     ("I am only a small model, but I like to talk about it.",)),
    (("Yes.", "Yes", "Yes, please.", "Sure.", "OK", "Okay."),
     ("Good. What would you like to know?",)),
    (("No.", "No", "No, thanks.", "Never mind."), ("All right.",)),
    (("I am sad.", "I feel sad today.", "I am unhappy."),
     ("I am sorry to hear that. Shall I tell you a story?",)),
    (("I am happy.", "I feel great today!", "I am so happy!"), ("That is good news!",)),
    (("I am bored.", "I have nothing to do."),
     ("Then let me tell you a story, or ask me a question.",)),
    (("How old are you?", "When were you made?"),
     ("I am very young. I was trained in a few minutes.",)),
    (("Where do you live?", "Where are you?"), ("I live in a small file on this computer.",)),
    (("Test", "test", "Is this working?", "Can you hear me?", "Ping"), ("Yes, I am here.",)),
    (("Name the days of the week.", "What are the days of the week?", "List the days of the week."),
     ("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",)),
    (("Name the months.", "What are the months of the year?", "List the months of the year."),
     (", ".join(w.MONTHS) + ".",)),
    (("How many days are in a week?", "How many days does a week have?"),
     ("A week has seven days.",)),
    (("How many months are in a year?", "How many months does a year have?"),
     ("A year has twelve months.",)),
    (("Say the alphabet.", "What is the alphabet?", "Recite the alphabet."),
     ("A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",)),
    (("Write a haiku.", "Write me a haiku.", "Can you write a haiku?"),
     ("Snow on the old roof.\nA small bird sings in the sun.\nThe winter goes home.",)),
)  # fmt: skip
UNKNOWN = (
    "Explain {t}.", "What is {t}?", "Tell me about {t}.", "What do you know about {t}?",
    "How does {t} work?", "Why is {t} important?", "Write an essay about {t}.",
    "Can you explain {t} to me?",
)  # fmt: skip
MOODS = "little big old young brave shy clever lazy hungry happy lonely kind curious".split()
PLACES = {
    "in a forest": "the forest", "by the sea": "the sea", "near a river": "the river",
    "on a hill": "the hill", "in a garden": "the garden", "in a small town": "the town",
    "under a bridge": "the bridge", "in an old house": "the house",
}  # fmt: skip
FINDS = (
    "key lamp letter map coin bell boat ball book hat stone basket feather drum shell ring".split()
)
HEROES = "fox owl bear mouse rabbit cat dog duck horse frog hen wolf goat pig turtle bee".split()
SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a kind helper.",
    "Answer briefly.", "You are Tiny, a small model.", "Be short and clear.",
    "Answer in one sentence.", "You are a friendly teacher.", "You answer simple questions.",
)  # fmt: skip
RHYMES = (
    ("tree", "free"), ("day", "play"), ("night", "light"), ("sea", "me"), ("sun", "run"),
    ("snow", "go"), ("star", "far"), ("rain", "train"), ("hill", "still"), ("song", "long"),
)  # fmt: skip


def small_talk(draw: random.Random) -> tuple[str, str]:
    asks, replies = draw.choice(TALK)
    return draw.choice(asks), draw.choice(replies)


def unknown(draw: random.Random) -> tuple[str, str]:
    topic = " ".join(draw.choice(w.WORDS) for _ in range(draw.randint(1, 2)))
    topic = w.made_up(draw) if draw.random() < 0.4 else topic
    if draw.random() < 0.3:
        topic = f"the {topic} of {draw.choice(w.CITIES)}"
    reply = f"I do not know much about {topic}. I only know a small world."
    return draw.choice(UNKNOWN).format(t=topic), reply


def story(draw: random.Random, hero: str | None = None, find: str | None = None) -> str:
    """Six to nine sentences: someone, somewhere, finds something, meets someone, and an end."""
    hero, find = hero or draw.choice(HEROES), find or draw.choice(FINDS)
    friend = draw.choice([h for h in HEROES if h != hero])
    name, other = draw.sample(w.NAMES + w.MORE_NAMES, 2)
    mood, place = draw.choice(MOODS), draw.choice(list(PLACES))
    there, colour = PLACES[place], draw.choice(w.COLOURS)
    he, him, his = draw.choice([("he", "him", "his"), ("she", "her", "her")])
    lines = [
        draw.choice([
            f"Once upon a time there was {w.a(mood)} {hero} called {name}. {name} lived {place}.",
            f"{name} was {w.a(mood)} {hero} who lived {place}.",
            f"There once lived {w.a(mood)} {hero} {place}. {his.capitalize()} name was {name}.",
        ]),
        draw.choice([
            f"One {draw.choice(['morning', 'day', 'evening'])} {name} found {w.a(colour)} {find} "
            f"near {there}.",
            f"One day {he} went for a walk and saw {w.a(colour)} {find} on the ground.",
            f"On {draw.choice(w.DAYS)} {name} found {w.a(colour)} {find} under a tree.",
        ]),
        draw.choice([
            f'"Whose {find} is this?" {he} asked.',
            f'"What a fine {find}!" said {name}.',
            f"{name} did not know what to do with the {find}.",
        ]),
        draw.choice([
            f"So {he} took the {find} to {other} the {friend}.",
            f"Then {w.a(friend)} called {other} came along.",
            f"Just then {other} the {friend} walked by.",
        ]),
        draw.choice([
            f'"It is my {find}!" cried {other}. "I lost it last {draw.choice(w.DAYS)}."',
            f'"I have looked for my {find} all day," said {other}.',
            f'{other} looked at the {find}. "It is mine," '
            f"{draw.choice(['the ' + friend, other])} said.",
        ]),
        draw.choice([
            f"{name} gave the {find} back, and {other} was very happy.",
            f'"Then you shall have it," said {name}, and gave {other} the {find}.',
            f"{name} smiled and gave {other} the {colour} {find}.",
        ]),
        draw.choice([
            f"They shared some {draw.choice(w.FOODS)} and became good friends.",
            f"To thank {him}, {other} made some {draw.choice(w.FOODS)}, and they ate together.",
            f"From that day on {name} and {other} played together every {draw.choice(w.DAYS)}.",
        ]),
    ]  # fmt: skip
    if draw.random() < 0.5:
        lines.append(draw.choice(["The end.", f"And {name} was never lonely again.",
                                  f"That night {name} slept very well."]))  # fmt: skip
    return " ".join(lines)


def story_turn(draw: random.Random) -> tuple[str, str]:
    hero, find = draw.choice(HEROES), draw.choice(FINDS)
    roll = draw.random()
    if roll < 0.35:
        text = draw.choice(["Tell me a story about {h}.", "Write a short story about {h}.",
                            "Can you tell me a story about {h}?",
                            "I want a story with {h}."])  # fmt: skip
        return text.format(h=w.a(hero)), story(draw, hero)
    if roll < 0.6:
        text = draw.choice(["Tell me a story about {h} and {f}.", "Write a story with {h} and {f}.",
                            "A story about {h} and {f}, please."])  # fmt: skip
        return text.format(h=w.a(hero), f=w.a(find)), story(draw, hero, find)
    if roll < 0.8:
        return draw.choice(["Tell me a story.", "Tell me a short story.", "Write a story.",
                            "Please tell me a story."]), story(draw)  # fmt: skip
    return verse_turn(draw)


def verse_turn(draw: random.Random) -> tuple[str, str]:
    (one, two), (three, four) = draw.sample(RHYMES, 2)
    hero, colour, mood = draw.choice(HEROES), draw.choice(w.COLOURS), draw.choice(MOODS)
    text = draw.choice([f"Write a poem about {w.a(hero)}.",
                        f"Write a short poem about {w.a(hero)}.",
                        f"Can you write a poem about {w.a(hero)}?"])  # fmt: skip
    verse = (
        f"The {mood} {hero} dreamed of the {one},\nAnd said: how good it is to {two}.\n"
        if two in ("play", "run", "go")
        else f"The {mood} {hero} looked at the {one},\n"
        f"{colour.capitalize()} and bright and {two}.\n"
    )
    return (
        text,
        verse
        + f"It thought of the {three}, it thought of the {four},\nAnd came home at last once more.",
    )


def told(draw: random.Random) -> tuple[tuple[str, str], tuple[str, str], str]:
    """A thing told, with its reply; the later question, with its answer; and its kind."""
    name = draw.choice(w.NAMES + w.MORE_NAMES)
    if draw.random() < 0.15:
        name = w.made_up(draw).capitalize()
    kind = draw.randrange(8)
    if kind <= 2:
        say = draw.choice(["My name is {v}.", "I am {v}.", "Hello, my name is {v}.", "I'm {v}.",
                           "Hi, I am {v}.", "Please call me {v}."]).format(v=name)  # fmt: skip
        ask = draw.choice(["What is my name?", "What's my name?", "Do you remember my name?",
                           "Who am I?", "How am I called?"])  # fmt: skip
        return (say, f"Nice to meet you, {name}!"), (ask, f"Your name is {name}."), name
    value, label = draw.choice([
        (draw.choice(w.COLOURS), "favourite colour"), (draw.choice(w.FOODS), "favourite food"),
        (draw.choice(w.HOBBIES), "hobby"), (draw.choice(HEROES), "favourite animal"),
        (draw.choice(w.CITIES), "home town"), (str(draw.randint(1, 99)), "lucky number"),
        (" ".join(draw.sample(w.WORDS, 2)), "secret word"), (w.made_up(draw), "password"),
        (draw.choice(w.PET_NAMES), "dog's name"), (draw.choice(w.DAYS), "day off"),
    ])  # fmt: skip
    if kind <= 5:
        say = draw.choice(
            ["My {k} is {v}.", "Remember that my {k} is {v}.", "By the way, my {k} is {v}."]
        )
        ask = draw.choice(
            ["What is my {k}?", "What's my {k}?", "Do you remember my {k}?", "Tell me my {k}."]
        )
        return (
            (say.format(k=label, v=value), f"I will remember that your {label} is {value}."),
            (ask.format(k=label), f"Your {label} is {value}."),
            value,
        )
    thing = draw.choice(FINDS)
    spot = draw.choice(["on the table", "in the kitchen", "under the bed", "behind the door",
                        "in the garden", "in the blue box", "on the chair",
                        "in the drawer"])  # fmt: skip
    say = draw.choice(["The {k} is {v}.", "I put the {k} {v}.", "Remember: the {k} is {v}."])
    ask = draw.choice(["Where is the {k}?", "Where is my {k}?", "Do you know where the {k} is?"])
    return (
        (say.format(k=thing, v=spot), f"I see. The {thing} is {spot}."),
        (ask.format(k=thing), f"The {thing} is {spot}."),
        spot,
    )
