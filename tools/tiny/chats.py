"""Whole chats for training, put together from asks, objects, tool jobs and talk."""

import json
import random
from typing import Any

from tensorfold.tools.tiny import asks, calls, objects, sums, talk
from tensorfold.tools.tiny import world as w
from tensorfold.tools.tiny.asks import Ask

Message = dict[str, Any]
MAKERS = (*asks.MAKERS, *sums.MAKERS)
WEIGHTS = [weight for _, weight in MAKERS]


def any_ask(draw: random.Random) -> Ask:
    return draw.choices(MAKERS, WEIGHTS)[0][0](draw)


def trained_ask(draw: random.Random) -> Ask:
    while (found := any_ask(draw)).held:
        pass
    return found


def trained_object(draw: random.Random) -> objects.Wanted:
    while (found := objects.wanted(draw)).held:
        pass
    return found


def trained_job(draw: random.Random) -> calls.Job:
    while (found := calls.job(draw)).held:
        pass
    return found


def told_held(told: tuple[tuple[str, str], tuple[str, str], str]) -> bool:
    return w.kept_back("told", told[0][0], told[1][0])


def trained_told(draw: random.Random) -> tuple[tuple[str, str], tuple[str, str], str]:
    while told_held(found := talk.told(draw)):
        pass
    return found


def pair(text: str, reply: str, thought: str = "") -> list[Message]:
    answer: Message = {"role": "assistant", "content": reply}
    if thought:
        answer["reasoning_content"] = thought
    return [{"role": "user", "content": text}, answer]


def exchange(draw: random.Random, thinks: bool) -> list[Message]:
    """One question or wish of any plain kind, with its reply."""
    roll = draw.random()
    if roll < 0.62:
        one = trained_ask(draw)
        return pair(one.text, one.reply, one.thought if thinks else "")
    if roll < 0.74:
        wanted = trained_object(draw)
        return pair(wanted.text, wanted.reply)
    if roll < 0.86:
        return pair(*talk.small_talk(draw))
    if roll < 0.92:
        return pair(*talk.unknown(draw))
    return pair(*talk.story_turn(draw))


def job_turns(draw: random.Random, job: calls.Job) -> list[Message]:
    """The request, its call or calls, their results and the answer (which some chats lack)."""
    ids = [f"call_{draw.randrange(16**6):06x}" for _ in job.calls]
    made = [
        {"id": ids[i], "type": "function", "function": {"name": name, "arguments": given}}
        for i, (name, given) in enumerate(job.calls)
    ]
    messages: list[Message] = [
        {"role": "user", "content": job.text},
        {"role": "assistant", "content": "", "tool_calls": made},
    ]
    if draw.random() < 0.75:
        for i, result in enumerate(job.results):
            messages.append({"role": "tool", "tool_call_id": ids[i], "content": result})
        messages.append({"role": "assistant", "content": job.answer})
    return messages


def tool_chat(draw: random.Random) -> dict[str, Any]:
    job = trained_job(draw)
    roll = draw.random()
    if roll < 0.8:
        messages = job_turns(draw, job)
    elif roll < 0.9:
        messages = exchange(draw, False) + job_turns(draw, job)
    else:
        messages = exchange(draw, False)
    if messages[-1]["role"] == "assistant" and messages[-1]["content"] and draw.random() < 0.2:
        messages += exchange(draw, False)
    tools = job.tools
    if draw.random() < 0.5:
        for tool in tools:
            tool["function"] = json.loads(json.dumps(tool["function"]))
            if draw.random() < 0.3:
                tool["function"]["parameters"].pop("required")
    return {"messages": system(draw) + messages, "tools": tools}


def thread_chat(draw: random.Random, thinks: bool) -> list[Message]:
    """Something is told, other things may come between, then it is asked for."""
    first, then, value = trained_told(draw)
    messages = pair(*first)
    second = talk.told(draw) if draw.random() < 0.4 else None
    if second and second[1][0] != then[0] and second[2] != value:
        if second[1][1].split(" is ")[0] != then[1].split(" is ")[0]:
            messages += pair(*second[0])
        else:
            second = None
    else:
        second = None
    for _ in range(draw.choice([0, 0, 1, 1, 2, 3])):
        messages += exchange(draw, thinks)
    messages += pair(*then)
    if second:
        messages += pair(*second[1])
    return messages


def told_in_one(draw: random.Random) -> list[Message]:
    """Told and asked in one message."""
    first, then, _ = trained_told(draw)
    return pair(f"{first[0]} {then[0]}", then[1])


def again(draw: random.Random) -> list[Message]:
    one = trained_ask(draw)
    ask = draw.choice(["What did I ask you first?", "What was my first question?"])
    between = exchange(draw, False) if draw.random() < 0.5 else []
    return pair(one.text, one.reply) + between + pair(ask, f'You asked: "{one.text}"')


def named_by_system(draw: random.Random) -> list[Message]:
    name = talk.told(draw)[2].split()[0].capitalize()
    ask = draw.choice(["What is your name?", "What's your name?", "Who are you?"])
    start = [
        {"role": "system", "content": draw.choice([f"Your name is {name}.", f"You are {name}."])}
    ]
    return start + pair(ask, f"My name is {name}.")


def system(draw: random.Random) -> list[Message]:
    if draw.random() < 0.7:
        return []
    return [{"role": "system", "content": draw.choice(talk.SYSTEMS)}]


def chat(draw: random.Random) -> dict[str, Any]:
    """One chat: `messages`, and `tools` or `reasoning_effort` where it has them."""
    effort = draw.choice([None, None, "high", "low"])
    thinks = effort != "low" and draw.random() < 0.9
    roll = draw.random()
    if roll < 0.24:
        made = tool_chat(draw)
    else:
        if roll < 0.40:
            messages = thread_chat(draw, thinks)
        elif roll < 0.43:
            messages = told_in_one(draw)
        elif roll < 0.45:
            messages = again(draw)
        elif roll < 0.46:
            messages = named_by_system(draw)
        else:
            messages = []
            for _ in range(draw.choice([1, 1, 1, 1, 2, 3])):
                messages += exchange(draw, thinks)
        if messages[0]["role"] != "system":
            messages = system(draw) + messages
        made = {"messages": messages}
    if effort:
        made["reasoning_effort"] = effort
    return made


def allowed(chat: dict[str, Any], banned: frozenset[str]) -> bool:
    """Whether a chat asks nothing that a held-out prompt asks in the same words."""
    asked = (m["content"] for m in chat["messages"] if m["role"] == "user")
    return not any(text in banned for text in asked)


def long_chat(draw: random.Random, turns: int) -> dict[str, Any]:
    """A chat of many turns that ends by asking for something told near its start."""
    first, then, _ = talk.told(draw)
    messages = pair(*first)
    for _ in range(turns):
        messages += exchange(draw, True)
    return {"messages": system(draw) + messages + pair(*then)}
