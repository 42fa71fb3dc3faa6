"""A snapshot of a running job as text: as a page for a terminal, or in a line for a log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from stepwell.analysis.findings import Finding
from stepwell.analysis.live import RankNow, Snapshot
from stepwell.cli.drawing import curve, number, plain, seconds, wrapped
from stepwell.cli.stacks import shorten
from stepwell.cli.summary import COLOURS
from stepwell.journal.text import rate

BAR = 30
MOST_RANKS = 8
MOST_FINDINGS = 4
LEAST_SHARE = 0.005
MOST_LINES = 8
OTHER = "other"
MARKS = {"critical": ("!!", "red"), "warning": ("! ", "yellow"), "note": ("· ", "cyan")}


def view_of(
    now: Snapshot, width: int, findings: Sequence[Finding] = (), height: int = 200
) -> RenderableType:
    """The page: state, progress, values, time, ranks, findings; no higher than the terminal."""
    parts: list[list[Text]] = [
        [_headline(now), *_progress(now, width)],
        _metrics(now, width),
        _time(now, width),
        _ranks(now, width),
        _findings(findings, width),
    ]
    if now.is_over:
        parts.append([Text(f"stepwell report {now.id}", "dim")])
    lines: list[Text] = []
    for part in parts:
        if part:
            lines += [Text(""), *part] if lines else part
    if len(lines) > height - 1:
        lines = [*lines[: max(1, height - 2)], Text("…", "dim")]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _headline(now: Snapshot) -> Text:
    text = plain(now.name)
    text.stylize("bold")
    text.append(f"  {now.status}", COLOURS.get(now.status, "yellow"))
    word = "after" if now.is_over else "for"
    text.append(f" {word} {seconds(now.seconds)}")
    if now.attempt:
        text.append(f", attempt {now.attempt + 1}")
    if now.error and now.is_over:
        text.append("  ").append_text(plain(now.error.splitlines()[0]))
    return text


def _progress(now: Snapshot, width: int) -> list[Text]:
    if now.step is None:
        return [] if now.is_over else [Text("no step yet")]
    line = Text()
    if now.done is not None:
        full = round(now.done * BAR)
        line.append("━" * full, "green").append("─" * (BAR - full), "bright_black")
        line.append(f" {now.done:.0%}  ")
    line.append("step " + _place(now))
    if now.seconds_left is not None:
        line.append(f" · {_left(now.seconds_left)} left", "bold")
    rates = _rates(now)
    if now.is_over:
        rates = "" if now.throughput is None else f"{now.throughput}"
    if not rates:
        return [line]
    if line.cell_len + len(rates) + 3 <= width:
        return [line.append(f" · {rates}")]
    return [line, Text(rates)]


def _left(value: float) -> str:
    """An estimate has no fractions of a second."""
    return seconds(round(value)) if value >= 1 else "1 s"


def _place(now: Snapshot) -> str:
    of = f" of {now.target}" if now.target else ""
    epoch = "" if now.epoch is None else f" · epoch {now.epoch}"
    return f"{now.step}{of}{epoch}"


def _rates(now: Snapshot) -> str:
    found = []
    if now.steps_per_second:
        found.append(_rate(now.steps_per_second, "step"))
    if now.samples_per_second:
        found.append(_rate(now.samples_per_second, "sample"))
    if now.tokens_per_second:
        found.append(_rate(now.tokens_per_second, "token"))
    return " · ".join(found)


def _rate(value: float, what: str) -> str:
    if what == "step" and value < 1:
        return f"{seconds(1 / value)} a step"
    return f"{rate(value)} {what}s/s"


def _metrics(now: Snapshot, width: int) -> list[Text]:
    widest = max((len(metric.name) for metric in now.metrics), default=0)
    room = max(8, min(40, width - min(widest, 28) - 24))
    lines = []
    for metric in now.metrics:
        name = plain(metric.name)
        name.truncate(min(widest, 28), overflow="ellipsis", pad=True)
        step = "" if metric.step is None else f"{metric.step}"
        name.append(f"  {number(metric.last):>10}").append(f" {step:>8}  ", "dim")
        lines.append(name.append(curve(list(metric.curve), room), "cyan"))
    if lines:
        head = Text(f"{'values':<{min(widest, 28)}}  {'last':>10} {'step':>8}")
        return [_heading(head), *lines]
    return []


def _time(now: Snapshot, width: int) -> list[Text]:
    shown = [(p, share) for p, share in now.time.items() if share >= LEAST_SHARE and p != OTHER]
    shown = shown[: MOST_LINES - 1]
    if not now.time:
        return []
    rest = max(0.0, 1 - sum(share for _, share in shown))
    shown += [(OTHER, rest)] if rest >= LEAST_SHARE else []
    who = "" if len(now.ranks) == 1 else f" of {len(now.ranks)} ranks"
    last = "minute" if now.time_seconds > 55 else seconds(now.time_seconds)
    lines = [_heading(Text(f"the last {last}{who}"))]
    for phase, share in shown:
        line = Text(f"{phase[:20]:<20}{share:>5.0%} ")
        lines.append(line.append("█" * max(1, round(share * (width - 30))), "blue"))
    return lines


def _ranks(now: Snapshot, width: int) -> list[Text]:
    """Ranks in the same place are one line."""
    groups: dict[tuple[str, str], list[RankNow]] = {}
    for rank in now.ranks:
        path = " › ".join(rank.inside) or "in no span"
        groups.setdefault((path, rank.status), []).append(rank)
    if now.is_over and not any(rank.inside for rank in now.ranks):
        return []
    title = "inside of, when it ended" if now.is_over else "inside of"
    lines = [_heading(Text(title))]
    for (path, status), group in list(groups.items())[:MOST_RANKS]:
        lines.append(_rank_line(path, status, group, width))
    more = len(groups) - MOST_RANKS
    if more > 0 or now.not_followed:
        count = sum(len(group) for group in list(groups.values())[MOST_RANKS:]) + now.not_followed
        lines.append(Text(f"and {count} more ranks: stepwell stacks {now.id}", "dim"))
    return lines


def _rank_line(path: str, status: str, group: list[RankNow], width: int) -> Text:
    ranks = sorted(rank.rank for rank in group)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {shorten(ranks)}"
    if status != "running":
        who += f" ({status})"
    longest = max(rank.seconds for rank in group)
    # What flickers by is no news; what lasts is.
    since = f"  {seconds(longest)}" if longest >= 1 and status == "running" else ""
    room = width - len(who) - len(since) - 2
    shown = plain(path)
    if shown.cell_len > room:
        # The innermost tells most.
        shown = plain("…" + path[-max(1, room - 1) :])
    return Text(f"{who}  ").append_text(shown).append(since, "yellow")


def _findings(findings: Sequence[Finding], width: int) -> list[Text]:
    lines = []
    for finding in findings[:MOST_FINDINGS]:
        mark, colour = MARKS[finding.severity]
        for at, piece in enumerate(wrapped(finding.sentence, width - 3).splitlines()):
            lines.append(Text.assemble((f"{mark if at == 0 else '  '} ", colour), piece))
    if len(findings) > MOST_FINDINGS:
        lines.append(Text(f"   and {len(findings) - MOST_FINDINGS} more", "dim"))
    return lines


def _heading(text: Text) -> Text:
    text.stylize("bold")
    return text


def line_of(now: Snapshot) -> list[str]:
    """A line of what matters, and one more for each new finding."""
    clock = f"{datetime.fromtimestamp(now.time_ns / 1e9):%H:%M:%S}"
    words = [clock, now.status]
    if now.step is not None:
        words.append("step " + _place(now).replace(" · ", " "))
    if now.done is not None:
        words.append(f"{now.done:.0%}")
    if now.seconds_left is not None:
        words.append(f"{_left(now.seconds_left)} left")
    if not now.is_over:
        words += [_rates(now)] if _rates(now) else []
    words += [f"{metric.name} {number(metric.last)}" for metric in now.metrics[:3]]
    words += [f"{p} {share:.0%}" for p, share in list(now.time.items())[:3]]
    if now.error and now.is_over:
        words.append(now.error.splitlines()[0])
    found = [plain(" · ".join(words)).plain]
    for finding in now.new:
        found.append(plain(f"{clock} · {finding.severity}: {finding.sentence}").plain)
    return found
