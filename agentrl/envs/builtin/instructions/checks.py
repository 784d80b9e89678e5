"""IFEval's checks of a response (Zhou et al., arXiv:2311.07911): one function for each kind of instruction.

They follow the published checker's rules. Where that uses NLTK's models, to find sentences and words in capitals, there
are rules here that need no data. Of text in capitals or small letters it also asks whether langdetect takes it for
English, which it often does not where the text is short; that is left out. Each takes time in proportion to the text:
a model that writes nothing but blank lines, dots or brackets must not hold up a run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from agentrl.common.patterns import PatternTooSlow, count
from agentrl.common.untrusted import has_visible

Check = Callable[..., bool]
LANGUAGE = "language:response_language"
CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_SENTENCE = re.compile(r"(?<![.!?])[.!?]++[\"')\]]*+(?=\s|$)")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Capt|Lt|Sr|Jr|Inc|Ltd|Co|etc|e\.g|i\.e|[A-Z])\.(?=\s)")
_CAPITALS = re.compile(r"\w+(?:[-']\w+)*")


def _related(count: int, number: int, relation: str) -> bool:
    return count < number if relation == "less than" else count >= number


def keywords(text: str, keywords: Sequence[str]) -> bool:
    """Every keyword is there."""
    return all(_count(word, text, 1) for word in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    """A keyword is there at least, or less than, so often."""
    return _related(_count(keyword, text), frequency, relation)


def forbidden(text: str, forbidden_words: Sequence[str]) -> bool:
    """None of the words is there."""
    return not any(_count(word, text, 1, around=(r"\b", r"\b")) for word in forbidden_words)


def letters(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """A letter is there at least, or less than, so often."""
    return _related(text.lower().count(letter.lower()), let_frequency, let_relation)


def language(text: str, language: str) -> bool:
    """It is in a language, by langdetect."""
    langdetect: Any = import_module("langdetect")
    try:
        return bool(langdetect.detect(text) == language)
    except langdetect.LangDetectException:
        return True


def sentences(text: str, num_sentences: int, relation: str) -> bool:
    """It has at least, or less than, so many sentences."""
    plain = _ABBREVIATION.sub(lambda found: found[0].replace(".", ""), text.strip())
    ends = len(_SENTENCE.findall(plain))
    rest = _SENTENCE.split(plain)[-1].strip()
    return _related(ends + bool(rest), num_sentences, relation)


def paragraphs(text: str, num_paragraphs: int) -> bool:
    """It has so many paragraphs, between lines of three asterisks."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    inner = parts[1:-1] if len(parts) > 1 else []
    return all(part.strip() for part in inner) and sum(bool(part.strip()) for part in parts) == num_paragraphs


def words(text: str, num_words: int, relation: str) -> bool:
    """It has at least, or less than, so many words."""
    return _related(len(re.findall(r"\w+", text)), num_words, relation)


def first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """It has so many paragraphs, between empty lines, of which one begins with a word."""
    parts = re.split(r"\n\n", text)
    full = sum(bool(part.strip()) for part in parts)
    if not 1 <= nth_paragraph <= full or not parts[nth_paragraph - 1].strip():
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return full == num_paragraphs and re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


def placeholders(text: str, num_placeholders: int) -> bool:
    """It has at least so many [placeholders]."""
    return sum(map(len, re.findall(r"\[[^\]\n]*(\]?)", text))) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """It has a postscript."""
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(postscript_marker, re.escape(postscript_marker.lower())), text.lower()) is not None


def bullets(text: str, num_bullets: int) -> bool:
    """It has so many bullet points, no more and no fewer."""
    starred = re.findall(r"^[^\S\n]*\*[^\*].*$", text, re.MULTILINE)
    return len(starred) + len(re.findall(r"^[^\S\n]*-", text, re.MULTILINE)) == num_bullets


def constrained(text: str) -> bool:
    """It has one of three answers."""
    return any(answer in text for answer in CONSTRAINED)


def highlights(text: str, num_highlights: int) -> bool:
    """It has at least so many *highlighted* or **highlighted** parts."""
    single = [part for part in re.findall(r"\*[^\n\*]*\*", text) if part.strip("*").strip()]
    double = [part for part in re.findall(r"\*\*[^\n\*]*\*\*", text) if part[2:-2].strip()]
    return len(single) + len(double) >= num_highlights


def sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """It has at least so many numbered sections; the argument is misspelt in the data."""
    return _count(section_spliter, text, around=(r"\s?", r"\s?\d+\s?"), flags=0) >= num_sections


def json_format(text: str) -> bool:
    """All of it is JSON, perhaps in a fence."""
    bare = re.sub(r"^```(?:json)?", "", text.strip(), flags=re.IGNORECASE).removesuffix("```").strip()
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """It has a <<title>>."""
    lines = ((line, line.find("<<"), line.rfind(">>")) for line in text.split("\n"))
    return any(line[begin:end].strip("<> ").strip() for line, begin, end in lines if 0 <= begin < end)


def two_responses(text: str) -> bool:
    """It is two different responses, between six asterisks."""
    parts = text.split("******")
    if not all(part.strip() for part in parts[1:-1]):
        return False
    full = [part.strip() for part in parts if part.strip()]
    return len(full) == 2 and full[0] != full[1]


def repeats(text: str, prompt_to_repeat: str) -> bool:
    """It begins with the request."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def ends(text: str, end_phrase: str) -> bool:
    """It ends with a phrase."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quoted(text: str) -> bool:
    """All of it is between quotation marks."""
    bare = text.strip()
    return len(bare) > 1 and bare[0] == bare[-1] == '"'


def capitals(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """It has at least, or less than, so many words in capitals."""
    return _related(sum(word.isupper() for word in _CAPITALS.findall(text)), capital_frequency, capital_relation)


def _count(
    word: str, text: str, most: int = sys.maxsize, around: tuple[str, str] = ("", ""), flags: int = re.IGNORECASE
) -> int:
    """How often a keyword is there; the published checker takes it for a regular expression, what is none is text."""
    try:
        return count(word, text, flags, most, around)
    except re.error:
        return count(re.escape(word), text, flags, most, around)


CHECKS: Mapping[str, Check] = {
    "keywords:existence": keywords,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden,
    "keywords:letter_frequency": letters,
    LANGUAGE: language,
    "length_constraints:number_sentences": sentences,
    "length_constraints:number_paragraphs": paragraphs,
    "length_constraints:number_words": words,
    "length_constraints:nth_paragraph_first_word": first_word,
    "detectable_content:number_placeholders": placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullets,
    "detectable_format:constrained_response": constrained,
    "detectable_format:number_highlighted_sections": highlights,
    "detectable_format:multiple_sections": sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeats,
    "startend:end_checker": ends,
    "startend:quotation": quoted,
    "change_case:capital_word_frequency": capitals,
    "change_case:english_capital": str.isupper,
    "change_case:english_lowercase": str.islower,
    "punctuation:no_comma": lambda text: "," not in text,
}


def can_tell_languages() -> bool:
    """Return whether langdetect is installed."""
    return find_spec("langdetect") is not None


def followed(
    text: str, kinds: Sequence[str], arguments: Sequence[Mapping[str, Any]], *, loose: bool = False
) -> list[bool]:
    """For each instruction, whether a response follows it.

    Args:
        text: the response.
        kinds: names of `CHECKS`.
        arguments: of each; those that are None are absent.
        loose: also where its first or last line, or its asterisks, stand in the way.
    """
    variants = [one for one in (_variants(text) if loose else [text]) if has_visible(one)]
    return [_is_followed(kind, own, variants) for kind, own in zip(kinds, arguments, strict=True)]


def _is_followed(kind: str, arguments: Mapping[str, Any], variants: Sequence[str]) -> bool:
    try:
        return any(CHECKS[kind](variant, **_given(arguments)) for variant in variants)
    except PatternTooSlow:  # also where a word is forbidden: the text may have been written for it
        return False


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _variants(text: str) -> list[str]:
    lines = text.split("\n")
    cut = [lines, lines[1:], lines[:-1], lines[1:-1]]
    texts = [text, *("\n".join(part).strip() for part in cut[1:])]
    return [*texts, *(each.replace("*", "") for each in texts)]
