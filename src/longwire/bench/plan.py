"""The rules between a run's settings.

What lives here: the load that they ask for, and an endpoint's URL. What must not: the settings (words/bench_settings.py).
"""

from __future__ import annotations

from ..words.addresses import split_address
from ..words.bench_settings import BenchSettings
from ..words.errors import SettingsError
from .schedule import Load, ScheduleError, parse_burst, parse_ramp


def load_of(settings: BenchSettings) -> Load:
    """The arrivals of one repeat, warm-up included.

    Raises:
        SettingsError: ramp or burst say nothing.
    """
    try:
        start, end = parse_ramp(settings.ramp) if settings.ramp else (settings.rate, settings.rate)
        count, every_s = parse_burst(settings.burst) if settings.burst else (0, 0.0)
    except ScheduleError as exc:
        raise SettingsError(str(exc)) from exc
    return Load(start, end, settings.warm_up_s + settings.duration_s, settings.arrivals, count, every_s)


def base_url(text: str, where: str = "") -> str:
    """An endpoint's URL up to ``/v1``; ``where``: the flag that it came by.

    Raises:
        SettingsError: it is none.
    """
    try:
        parts = split_address(text)
        is_good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        is_good = False
    if not is_good:
        raise SettingsError(f"{text!r} is no endpoint: it looks like http://127.0.0.1:8080.", where=where)
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"
