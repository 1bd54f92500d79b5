"""Cut a prompt of exactly N tokens, as the server counts them, out of the corpus.

Knows the corpus, its index and a counting function; what surrounds the text (BOS, chat template,
history, a shared prefix) is inside a `Context` and makes no difference here. The subtle rule:
nothing is accepted unless its count equals N. The search only makes that cheap: slice the
original text at a token start, count, move the cut by what is missing, count again.

A search is a generator that asks for counts of texts and is told them, so that many searches
share one call of the tokenizer and the result cannot depend on which ones ran together.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tokenswarm.prompts.corpus import Corpus
from tokenswarm.prompts.index import WORD_EDGE, Index, splice
from tokenswarm.prompts.salt import draw
from tokenswarm.records import BadInput

_log = logging.getLogger(__name__)
RULES = "exact-2"
_STARTS_TRIED = 8
_NEAR_THE_FLOOR = 16  # tokens of room below which a salt is counted, whatever others count
_MOVES = 7
_FILL_MOST = 16
_FINE_CHARS = 32
_FINE_CHECKED = 4
_WINDOW_BYTES = 200
_LONG_BEFORE = 1500  # characters in front of the text that are worth leaving out of counts
_VERIFY_EACH = 50  # one prompt in so many is counted in full, through the template
_FILLERS = ("the", "and", "of", "to", "in", "is", "for", "that", "it", "on", "as", "with", "we")
AROUND = "template and special tokens"

Counts = Generator[list[str], list[int], "Cut"]
Lengths = Callable[[Sequence[str]], list[int]]


class ExactLengthError(BadInput):
    """A length that cannot be reached; the numbers are in the text."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The varying part of a prompt: salt + corpus[start:end] + filler.

    tokens counts the whole prompt, what surrounds this text included.
    """

    text: str
    start: int
    end: int
    tokens: int
    filler: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """What the server adds around a text.

    wrap gives the whole, through the template itself; short gives what counts the same but for
    left_out tokens, by putting texts together. name says in messages what takes the room. base
    is what this and a salt count, where that seems to be the same for every salt.
    """

    wrap: Callable[[str], str]
    short: Callable[[str], str]
    left_out: int = 0
    name: str = AROUND
    base: int | None = None


@dataclass(slots=True)
class Cutter:
    """Searches for cuts with one tokenizer, one corpus and one way of counting.

    lengths counts whole texts as the server does. splice: parts of counts may be added up.
    """

    name: str
    corpus: Corpus
    index: Index
    lengths: Lengths
    splice: bool
    verify_all: bool = False
    bias: int = 0
    fillers: tuple[str, ...] = ()
    misses: int = field(default=0, init=False)

    def run(self, searches: Iterable[Counts]) -> list[Cut]:
        """Run searches together; the first that finds its length impossible raises."""
        return run(searches, self.lengths)

    def search(
        self,
        want: int,
        salt: str,
        context: Context,
        key: str,
        passage: int | None = None,
        last: int | None = None,
    ) -> Counts:
        """Search for salt + text of `want` tokens in all, context included.

        key fixes which passages are tried; passage names the one to start at instead, and last
        the offset that the text must not go beyond.
        """
        return _Search(self, want, salt, context, key, last, not self.splice).steps(passage)

    def whole(self, passage: int, salt: str, context: Context) -> Counts:
        """Salt + a passage as it is, counted."""
        a, b = self.corpus.starts[passage], self.corpus.end_of(passage)
        text = salt + self.corpus.cut(a, b)
        (count,) = yield [context.wrap(text)]
        return Cut(text, a, b, count)


def run(searches: Iterable[Counts], lengths: Lengths) -> list[Cut]:
    """Drive generators of questions in lockstep: one call of `lengths` answers all of them."""
    done: dict[int, Cut] = {}
    waiting: list[tuple[int, Counts, list[str]]] = []

    def advance(number: int, search: Counts, answer: list[int] | None) -> None:
        try:
            question = next(search) if answer is None else search.send(answer)
        except StopIteration as stop:
            done[number] = stop.value
        else:
            waiting.append((number, search, question))

    for number, search in enumerate(searches):
        advance(number, search, None)
    while waiting:
        asked, waiting[:] = list(waiting), []
        counts = lengths([text for _, _, question in asked for text in question])
        at = 0
        for number, search, question in asked:
            advance(number, search, counts[at : at + len(question)])
            at += len(question)
    return [done[number] for number in range(len(done))]


def plain_context(wrap: Callable[[str], str], name: str = AROUND) -> Context:
    """A context that is counted whole."""
    return Context(wrap, wrap, 0, name)


def surrounded(
    wrap: Callable[[str], str], before: str, after: str, lengths: Lengths, name: str = AROUND
) -> Context:
    """A context of fixed text before and after; a long `before` is counted once, not each time."""

    def joined(text: str) -> str:
        return before + text + after

    edges = [m.start() + 1 for m in WORD_EDGE.finditer(before)]
    left = next((e for e in edges if e >= 256), None)
    right = next((e for e in reversed(edges) if e <= len(before) - 256), None)
    if len(before) < _LONG_BEFORE or left is None or right is None or right <= left:
        return Context(wrap, joined, 0, name)
    kept = before[:left] + before[right:]

    def short(text: str) -> str:
        return kept + text + after

    probes = ("general words follow here: Hello", "another one entirely: 42 things")
    counts = lengths([f(p) for p in probes for f in (joined, short)])
    left_out = counts[0] - counts[1]
    if left_out != counts[2] - counts[3]:  # the parts do not add up with this tokenizer
        return Context(wrap, joined, 0, name)
    return Context(wrap, short, left_out, name)


def calibrate(cutter: Cutter, context: Context) -> None:
    """Learn, from fixed probes, what joining the text to its context costs, and the fillers.

    The bias only chooses the first guess, but that may choose which of several exact cuts is
    found: so it must not depend on what was asked before.
    """
    corpus, index = cutter.corpus, cutter.index
    salt = "word word word:"
    texts, expected = [context.short(salt)], []
    for i in range(9):
        passage = draw(f"calibrate:{i}", len(corpus.starts))
        a = corpus.starts[passage]
        b = end_at(cutter, a, index.firsts[passage] + 60)
        texts.append(context.short(f"{salt} {corpus.cut(a, b)}"))
        expected.append(index.token_at(b) - index.firsts[passage])
    base, *counts = cutter.lengths(texts)
    missed = sorted(c - base - e for c, e in zip(counts, expected, strict=True))
    cutter.bias = -missed[len(missed) // 2]
    cutter.fillers = tuple(w for w in _FILLERS if _adds_one(cutter, context, w))


def with_base(cutter: Cutter, context: Context, salts: Sequence[str]) -> Context:
    """The context with what these salts count in it, when all count the same.

    Only a first guess: what is accepted was counted whole.
    """
    counts = set(cutter.lengths([context.short(salt.rstrip()) for salt in salts]))
    return replace(context, base=counts.pop() + context.left_out) if len(counts) == 1 else context


def _adds_one(cutter: Cutter, context: Context, word: str) -> bool:
    for base in ("Hello there", "What is 17 x 4?", "a list:\n- one\n- two."):
        texts = [context.short(base + f" {word}" * n) for n in range(9)]
        counts = cutter.lengths(texts)
        if any(count != counts[0] + n for n, count in enumerate(counts)):
            return False
    return True


def end_at(cutter: Cutter, start: int, token: int, last: int | None = None) -> int:
    """Offset of a token's start, pulled back over blanks; not before start, not beyond last."""
    starts = cutter.index.starts
    end = starts[token] if token < len(starts) else len(cutter.corpus.text)
    return back_over_blanks(cutter.corpus.text, start, end if last is None else min(end, last))


def back_over_blanks(text: memoryview, start: int, end: int) -> int:
    """The largest offset up to end with no white space in front of it, at least start."""
    while end > start:
        byte = text[end - 1]
        if 0x20 < byte < 0x80:
            return end
        if byte < 0x80:
            end -= 1
            continue
        lead = end - 1
        while lead > start and text[lead] & 0xC0 == 0x80:
            lead -= 1
        if not str(text[lead:end], "utf-8", "replace").isspace():
            return end
        end = lead
    return end


@dataclass(slots=True)
class _Search:
    """One search; the names are those of the algorithm: text is salt + corpus[a:b]."""

    cutter: Cutter
    want: int
    salt: str
    context: Context
    key: str
    last: int | None
    full: bool

    def steps(self, passage: int | None) -> Counts:
        cutter, context = self.cutter, self.context
        bare = self.salt.rstrip()
        known = context.base if self.salt and not self.full else None
        if self.full:
            (base,) = yield [context.wrap(bare)]
        elif known is not None and self.want - known > _NEAR_THE_FLOOR:
            base = known
        else:
            (base,) = yield [context.short(bare)]
            base += context.left_out
        if base > self.want:
            (around,) = yield [context.wrap("")]
            raise self.below_floor(base, around)
        nearest: int | None = None
        for attempt in range(_STARTS_TRIED):
            chosen = passage  # the given one first; if that cannot do it, any other
            if chosen is None or attempt:
                chosen = self.choose(attempt, self.want - base)
            cut, near = yield from self.from_passage(chosen, base)
            if cut is not None:
                return cut
            if self.last is not None:  # only this passage will do
                nearest = near
                break
            if near is not None and (
                nearest is None or abs(near - self.want) < abs(nearest - self.want)
            ):
                nearest = near
        raise ExactLengthError(
            f"no prompt of exactly {self.want} tokens was found with tokenizer"
            f" {cutter.name} ({_STARTS_TRIED} places in the corpus tried; nearest:"
            f" {nearest}; {context.name} and salt take {base}). Ask for another length."
        )

    def choose(self, attempt: int, tokens: int) -> int:
        """A passage with enough text behind it, by hash of the key."""
        index = self.cutter.index
        total = len(index.starts)
        usable = bisect_left(index.firsts, total - tokens - _FILL_MOST)
        if usable <= 0:
            if tokens + _FILL_MOST < total:
                return 0
            raise ExactLengthError(
                f"a prompt of {self.want} tokens is longer than the whole corpus"
                f" ({total:,} tokens). Give more text (prompts.path)."
            )
        return draw(f"{self.key}:{attempt}", usable)

    def from_passage(
        self, passage: int, base: int
    ) -> Generator[list[str], list[int], tuple[Cut | None, int | None]]:
        cutter = self.cutter
        a, first = cutter.corpus.starts[passage], cutter.index.firsts[passage]
        room = self.want - base
        if room <= 0:
            return Cut(self.salt.rstrip(), a, a, self.want), None
        n = room + cutter.bias
        seen: dict[int, int] = {}
        for _ in range(_MOVES):
            b = end_at(cutter, a, first + max(0, n), self.last)
            if b in seen:
                break
            count = yield from self.cheap(a, b)
            if count == self.want:
                exact = yield from self.accept(a, b)
                if exact is not None:
                    return exact, None
                count = yield from self.cheap(a, b)  # in full from now on
                if count == self.want:
                    return self.cut(a, b), None
            seen[b] = count
            n += self.want - count
        best = min(seen, key=lambda b: abs(seen[b] - self.want))
        found = yield from self.fill(a, seen)  # one count; fine takes some sixty short ones
        if found is None:
            found = yield from self.fine(a, best, seen[best])
        return found, seen[best]

    def cheap(self, a: int, b: int, filler: str = "") -> Generator[list[str], list[int], int]:
        """The count of a candidate; spliced where that is known to be right."""
        text = self.cutter.corpus.cut(a, b)
        if not self.full and self.cutter.splice:
            parts = splice(text, a)
            if parts is not None:
                kept, q, z = parts
                (count,) = yield [self.context.short(self.join(kept) + filler)]
                index = self.cutter.index
                middle = index.token_at(z) - index.token_at(q)
                return count + middle + self.context.left_out
        if self.full:
            (count,) = yield [self.context.wrap(self.join(text) + filler)]
            return count
        (count,) = yield [self.context.short(self.join(text) + filler)]
        return count + self.context.left_out

    def accept(
        self, a: int, b: int, cut: Cut | None = None
    ) -> Generator[list[str], list[int], Cut | None]:
        """The cut, when it is right; a wrong spliced count ends splicing for this search."""
        cutter = self.cutter
        cut = cut or self.cut(a, b)
        if self.full:
            return cut
        if cutter.verify_all or draw(f"verify:{self.key}", _VERIFY_EACH) == 0:
            (count,) = yield [self.context.wrap(cut.text)]
            if count != self.want:
                cutter.misses += 1
                _log.warning(
                    "a count put together from parts was wrong (%d, really %d; %d so far):"
                    " counting in full",
                    self.want,
                    count,
                    cutter.misses,
                )
                self.full = True
                return None
        return cut

    def fine(self, a: int, near: int, known: int) -> Generator[list[str], list[int], Cut | None]:
        """Try every character around a cut: predict from a window, then count the promising."""
        corpus = self.cutter.corpus
        low = max(a, near - _FINE_CHARS)
        high = min(len(corpus.text), near + _FINE_CHARS, self.last or len(corpus.text))
        ends = sorted(
            {
                end
                for at in range(low, high + 1)
                if at == len(corpus.text) or corpus.text[at] & 0xC0 != 0x80
                for end in [back_over_blanks(corpus.text, a, at)]
                if end > a
            }
        )
        if not ends:
            return None
        window = max(a, ends[0] - _WINDOW_BYTES)
        while window > a and corpus.text[window] & 0xC0 == 0x80:
            window -= 1
        counts = yield [self.context.short(corpus.cut(window, e)) for e in [near, *ends]]
        at_near, *others = counts
        likely = [e for e, c in zip(ends, others, strict=True) if known + c - at_near == self.want]
        for end in sorted(likely, key=lambda e: (abs(e - near), e))[:_FINE_CHECKED]:
            count = yield from self.cheap(a, end)
            if count == self.want:
                cut = yield from self.accept(a, end)
                if cut is not None:
                    return cut
        return None

    def fill(self, a: int, seen: dict[int, int]) -> Generator[list[str], list[int], Cut | None]:
        """Append words of one token each to a candidate that is a little short."""
        words = self.cutter.fillers
        if not words:
            return None
        short = [b for b, c in seen.items() if 0 < self.want - c <= _FILL_MOST]
        for b in sorted(short, key=lambda b: -seen[b])[:_FINE_CHECKED]:
            missing = self.want - seen[b]
            turn = draw(f"fill:{self.key}", len(words))
            filler = "".join(f" {words[(turn + i) % len(words)]}" for i in range(missing))
            count = yield from self.cheap(a, b, filler)
            if count == self.want:
                text = self.join(self.cutter.corpus.cut(a, b)) + filler
                cut = yield from self.accept(a, b, Cut(text, a, b, count, filler))
                if cut is not None:
                    return cut
        return None

    def cut(self, a: int, b: int) -> Cut:
        return Cut(self.join(self.cutter.corpus.cut(a, b)), a, b, self.want)

    def join(self, text: str) -> str:
        return (self.salt + text).rstrip() if not text else self.salt + text

    def below_floor(self, base: int, around: int) -> ExactLengthError:
        return ExactLengthError(
            f"{self.want} tokens is below the floor of {base} for tokenizer"
            f" {self.cutter.name} ({self.context.name}: {around}, words that make the"
            f" prompt unique: {base - around}). Ask for at least {base} tokens."
        )
