"""Faults in what is asked: other answers than the one asked for, other paces, other details.

What lives here: one small function per fault, entered into the table under its own name.
What must not: events (event_faults.py), the wire (wire_faults.py).
"""

from __future__ import annotations

from dataclasses import replace

from .answer import encode_json
from .ask import Ask
from .fault import asks
from .reply import InsteadError, refusal

HTML = b"<!DOCTYPE html>\n<html><head><title>A proxy's page</title></head><body><h1>It works!</h1></body></html>\n"
INVENTED_FINISH = "sim_was_bored"
"""No API has it."""


@asks("the first token comes after MS milliseconds, the head at once", default=None)
def slow_first_token(ask: Ask, arg: int) -> Ask:
    return replace(ask, ttft_s=arg / 1000)


@asks("an error of status CODE with an OpenAI body instead of an answer", default=None, low=400)
def status(_: Ask, arg: int) -> Ask:
    raise refusal(arg, f"The stand-in was asked to answer {arg}.", code=f"sim_{arg}")


@asks("an HTML page, as a proxy in front would send it (=CODE for a status other than 200)", default=200, low=200)
def html(_: Ask, arg: int) -> Ask:
    raise InsteadError(arg, HTML, b"text/html; charset=utf-8")


@asks("400 where stream_options are sent, as engines do that do not know them")
def refuse_stream_options(ask: Ask, _: int) -> Ask:
    if "stream_options" in ask.body:
        raise refusal(400, "Unrecognized request argument supplied: stream_options", "stream_options")
    return ask


@asks("usage in the finish frame, whose choices are not empty, instead of a frame of its own")
def usage_in_choices(ask: Ask, _: int) -> Ask:
    return replace(ask, usage_in_choices=True)


@asks("usage in every content frame")
def continuous_usage(ask: Ask, _: int) -> Ask:
    return replace(ask, continuous_usage=True)


@asks("no usage, though it was asked for")
def no_usage(ask: Ask, _: int) -> Ask:
    return replace(ask, include_usage=False, continuous_usage=False)


@asks("429 with Retry-After: S seconds", default=1)
def retry_after(_: Ask, arg: int) -> Ask:
    limited = refusal(429, f"The stand-in was asked to be asked again in {arg} s.", code="rate_limit_exceeded")
    limited.headers.append((b"retry-after", b"%d" % arg))
    raise limited


@asks("200 whose whole body is an error object, streamed or not")
def error_body(_: Ask, __: int) -> Ask:
    error = {"message": "The stand-in failed as asked.", "type": "server_error", "param": None, "code": "sim_error"}
    raise InsteadError(200, encode_json({"error": error}))


@asks("500 as vLLM answers a prompt that is too long, where it has more than N tokens", default=0)
def prompt_too_long(ask: Ask, arg: int) -> Ask:
    if ask.prompt_tokens <= arg:
        return ask
    message = (
        f"The decoder prompt (length {ask.prompt_tokens}) is longer than the maximum model length of {arg}. "
        "Make sure that `max_model_len` is no smaller than the number of text tokens."
    )
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    raise InsteadError(500, encode_json({"error": error}))


@asks("a finish_reason that no API has")
def invented_finish(ask: Ask, _: int) -> Ask:
    return replace(ask, finish=INVENTED_FINISH)


@asks("a token every MS milliseconds (default: one a minute)", default=60_000)
def slow_tokens(ask: Ask, arg: int) -> Ask:
    return replace(ask, itl_s=arg / 1000, jitter=0.0)


@asks("N tokens a second", default=50_000, low=1)
def tokens_per_s(ask: Ask, arg: int) -> Ask:
    return replace(ask, itl_s=1 / arg, jitter=0.0)


@asks("the beginning of a stop string is sent before it is known to be one; engines hold it back")
def no_hold_back(ask: Ask, _: int) -> Ask:
    return replace(ask, holds_back=False)
