"""The door for engines of elsewhere: what the first request would find out is told at the start."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature

from tensorfold.core.engine_api import Engine, Flight, Opening, Piece, Result, Window, nobody
from tensorfold.core.errors import NoRoom, Refused, StartError


def check_flights(engine: Engine) -> None:
    """Fill and decode a token of nobody, and see that its flights can be landed as the host does.

    Raises `StartError` where `land` takes no `waits`. Of what ran nothing is left in the engine.
    """
    try:
        engine.open(Opening(stream=0, prompt=(0,), most=2))
    except (NoRoom, Refused):
        # It may refuse whom it likes: a request is told in words.
        return
    (filled,) = landed(engine, engine.fill([Piece(stream=0, start=0, end=1)]))
    if filled.token is not None:
        landed(engine, engine.round([Window(stream=0, tokens=(filled.token,))]))
    engine.close(0)


def landed(engine: Engine, flight: Flight[Result]) -> Sequence[Result]:
    try:
        given = signature(flight.land)
    except ValueError:
        # Compiled code may tell nothing of itself.
        return flight.land(nobody)
    try:
        given.bind(nobody)
    except TypeError:
        raise StartError(
            f"engine {type(engine).__name__} cannot be served: {type(flight).__name__}.land{given} "
            "has to take `waits`, a function that tells whether a prompt waits "
            "(Flight in core/engine_api.py)"
        ) from None
    return flight.land(nobody)
