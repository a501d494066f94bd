"""The small closed world that the bundled model knows: people, towns, animals, words."""

import random
import zlib
from dataclasses import dataclass

NAMES = (
    "Ada Ben Clara Dan Ella Finn Grace Hugo Iris Jack Kate Leo Mia Noah Olive Paul Quinn Rosa Sam "
    "Tess Uma Victor Wendy Yusuf"
).split()
MORE_NAMES = (
    "Alex Amir Anna Aria Arthur Bella Boris Carl Chloe Daisy David Diego Elena Emil Emma Erik Eva "
    "Felix Fiona Frida George Hanna Henry Ines Ivan Jane Jonas Julia Karim Karl Laura Lena Liam "
    "Lina Lucas Lucy Maria Mark Marta Max Nadia Nina Omar Oscar Peter Petra Rita Robin Ruth Sara "
    "Simon Sofia Stella Sven Theo Tim Tom Vera Will Zoe"
).split()
TOWNS = (
    "Alderton",
    "Brookhill",
    "Cedar Bay",
    "Dunmore",
    "Elmstead",
    "Foxley",
    "Greywater",
    "Harbour End",
    "Ivybridge",
    "Kingsmill",
    "Larkfield",
    "Moss Hollow",
)
CITIES = (
    "Paris London Berlin Madrid Rome Oslo Lund Vienna Tokyo Cairo Lima Boston Chicago Dublin "
    "Lisbon Prague Zurich Milan Athens Delhi Sydney Toronto Seoul Nairobi Bergen Porto Leeds York "
    "Geneva Munich Krakow Naples Austin Denver Seattle Kyoto Hanoi Accra Quito Havana"
).split()
JOBS = (
    "baker teacher doctor farmer painter sailor gardener carpenter nurse tailor cook pilot "
    "librarian driver singer builder"
).split()
PETS = "cat dog rabbit parrot turtle hamster goat pony".split()
PET_NAMES = (
    "Biscuit Pepper Clover Shadow Pip Maple Button Rusty Snow Ginger Mango Olli Ziggy Hazel Bean "
    "Misty Nutmeg Toffee Pebble Willow Dusty Coco Sunny Bramble"
).split()
COLOURS = "red blue green yellow orange purple pink white black brown grey silver".split()
FOODS = (
    "soup bread cheese apples pasta rice fish pancakes honey plums carrots noodles pie eggs"
).split()
HOBBIES = (
    "chess painting fishing running swimming singing reading cooking sailing dancing cycling "
    "knitting"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "New Delhi",
    "Canada": "Ottawa",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Cuba": "Havana",
    "Ghana": "Accra",
    "Russia": "Moscow",
    "Turkey": "Ankara",
    "Belgium": "Brussels",
    "Iceland": "Reykjavik",
    "Ukraine": "Kyiv",
}
# animal: sound, legs, young, home
ANIMALS = {
    "cat": ("meows", 4, "kitten", "a house"),
    "dog": ("barks", 4, "puppy", "a kennel"),
    "cow": ("moos", 4, "calf", "a barn"),
    "sheep": ("bleats", 4, "lamb", "a pasture"),
    "horse": ("neighs", 4, "foal", "a stable"),
    "duck": ("quacks", 2, "duckling", "a pond"),
    "hen": ("clucks", 2, "chick", "a coop"),
    "pig": ("grunts", 4, "piglet", "a sty"),
    "frog": ("croaks", 4, "tadpole", "a pond"),
    "lion": ("roars", 4, "cub", "the savanna"),
    "bee": ("buzzes", 6, "larva", "a hive"),
    "owl": ("hoots", 2, "owlet", "a hollow tree"),
    "bear": ("growls", 4, "cub", "a cave"),
    "goat": ("bleats", 4, "kid", "a hillside"),
    "wolf": ("howls", 4, "pup", "a den"),
    "mouse": ("squeaks", 4, "pup", "a hole"),
}
THINGS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a banana": "yellow",
    "a lemon": "yellow",
    "a tomato": "red",
    "blood": "red",
    "a carrot": "orange",
    "a pumpkin": "orange",
    "milk": "white",
    "chocolate": "brown",
    "an elephant": "grey",
    "a leaf": "green",
    "the sun": "yellow",
    "a strawberry": "red",
    "a plum": "purple",
    "a flamingo": "pink",
    "the sea": "blue",
    "a crow": "black",
}
OPPOSITES = (
    "hot cold,big small,up down,day night,open closed,happy sad,fast slow,wet dry,early late,"
    "high low,full empty,hard soft,light dark,old young,long short,left right,loud quiet,"
    "clean dirty,rich poor,strong weak,near far,thick thin,wide narrow,sweet sour,true false,"
    "first last,inside outside,heavy light,deep shallow,begin end,win lose,push pull,"
    "buy sell,give take,love hate,remember forget,always never,north south,east west,black white"
)
PLURALS = {
    "mouse": "mice",
    "child": "children",
    "foot": "feet",
    "tooth": "teeth",
    "goose": "geese",
    "man": "men",
    "woman": "women",
    "leaf": "leaves",
    "knife": "knives",
    "wolf": "wolves",
    "box": "boxes",
    "city": "cities",
    "apple": "apples",
    "book": "books",
    "house": "houses",
    "baby": "babies",
    "bus": "buses",
    "fox": "foxes",
    "tree": "trees",
    "berry": "berries",
}
PASTS = {
    "go": "went",
    "eat": "ate",
    "run": "ran",
    "see": "saw",
    "take": "took",
    "give": "gave",
    "write": "wrote",
    "sing": "sang",
    "swim": "swam",
    "walk": "walked",
    "find": "found",
    "buy": "bought",
    "think": "thought",
    "make": "made",
    "fly": "flew",
    "drink": "drank",
    "play": "played",
    "jump": "jumped",
    "come": "came",
    "know": "knew",
}
GROUPS = {
    "fruit": "apple banana cherry grape lemon mango orange peach pear plum".split(),
    "vegetable": "carrot potato onion cabbage pea bean leek spinach radish turnip".split(),
    "animal": "cat dog cow horse lion tiger rabbit wolf bear goat".split(),
    "tool": "hammer saw drill spade wrench rake axe pliers chisel screwdriver".split(),
    "colour": "red blue green yellow purple pink white black brown grey".split(),
    "instrument": "piano violin guitar flute drum harp trumpet cello organ banjo".split(),
}
SPELL = (
    "apple bread chair cloud dream earth field garden house island jacket kitchen ladder mother "
    "number orange pencil queen river school table under village water yellow zebra book tree cat "
    "dog fish milk sun moon star rain snow wind hand door window friend happy music paper stone "
    "train green horse light mouse night plant sheep tiger"
).split()
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
WORDS = (
    "account album anchor arrow autumn badge bakery balance balloon basket battery beach bell "
    "blanket board boat bottle branch breeze bridge bright broken bucket budget button cabin cable "
    "calm camera candle canyon carpet castle cellar circle clever coffee copper corner cotton "
    "crystal daily dance delta desert dinner doctor dragon early easy echo engine evening extra "
    "fabric family feather fence festival final flame flower forest fresh frozen future galaxy "
    "gentle ghost giant glass golden grand gravel hammer harbor harvest hidden hollow honest "
    "husky icon indigo island ivory jade journal jungle kettle kind ladder lantern large lemon "
    "letter linen little lively lunar magnet marble market meadow metal midnight mirror model "
    "modern morning mountain narrow nature needle nickel noble north novel ocean office old olive "
    "opal orbit outer oxford paint palace parcel pearl photo picnic pilot planet plain pocket "
    "polar project purple quartz quick quiet rapid report ribbon ridge river robin rocket rough "
    "royal sample sandy scarlet season secret shadow sharp signal silent simple sketch smooth "
    "solar spark spring square steel storm street studio summer sunset table temple thunder ticket "
    "timber tiny tower travel tunnel turtle update valley velvet violet voyage wagon warm weekly "
    "white wild winter wonder wooden yearly young zebra zenith"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    name: str
    town: str
    job: str
    pet: str
    pet_name: str
    colour: str
    food: str
    hobby: str
    age: int


def _people() -> tuple[Person, ...]:
    draw = random.Random("the people of the small world")
    pets = draw.sample(PET_NAMES, len(NAMES))
    ages = draw.sample(range(18, 80), len(NAMES))
    return tuple(
        Person(
            name=name,
            town=draw.choice(TOWNS),
            job=draw.choice(JOBS),
            pet=draw.choice(PETS),
            pet_name=pets[i],
            colour=draw.choice(COLOURS),
            food=draw.choice(FOODS),
            hobby=draw.choice(HOBBIES),
            age=ages[i],
        )
        for i, name in enumerate(NAMES)
    )


PEOPLE = _people()


def a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def join(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def kept_back(*combination: object) -> bool:
    """Whether a combination is for held-out prompts only: one in ten, by its own text."""
    return zlib.crc32("|".join(map(str, combination)).encode()) % 10 == 0


def made_up(draw: random.Random) -> str:
    """A pronounceable word that nobody has seen, two to three syllables."""
    return "".join(
        draw.choice("bcdfghjklmnprstvwz")
        + draw.choice("aeiou")
        + draw.choice(["", "", "n", "r", "l"])
        for _ in range(draw.randint(2, 3))
    )
