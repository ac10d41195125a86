"""The sentences of a plan in Chinese: a plan keeps them in English, with its numbers filled in.

>>> in_chinese("No setting was lighter than the model as it is and fit the request: leave it.")
'没有比现状更轻且符合要求的设置：保持不变。'
>>> in_chinese("something else") is None
True
"""

from __future__ import annotations

import functools
import re

__all__ = ["PLAN", "in_chinese"]

LONGEST = 4000  # characters of a sentence that is looked at

# What a place may hold; where nothing is said, one word. Few places are open, so that no text takes long to match.
WORD = r"\S{1,40}"
PLACES = {
    "bytes": r"[\d.,]+ \w{1,3}", "whole": r"[\d.,]+ \w{1,3}", "policy": ".+?", "other": ".+?", "parts": ".+", "arm": "[^:;]+", "layers": "[0-9, ]+",
    "spread": r"(?: \[\S+ \S+\])?",
}  # fmt: skip

PLAN = {
    # why
    "Nothing was asked of the cache.": "没有对缓存提出要求。",
    "The whole cache, {bytes}, fits the budget of {whole}: nothing has to be given up.": "整个缓存 {bytes} 在预算 {whole} 之内：无需放弃任何东西。",
    "No setting was lighter than the model as it is and fit the request: leave it.": "没有比现状更轻且符合要求的设置：保持不变。",
    "None of the {n} settings that were measured kept the tolerance on the tuning texts; the mildest, {policy}, raised the perplexity by {increase}: leave it.":
        "测量过的 {n} 个设置在调优文本上都没有守住容限；其中最温和的 {policy} 使困惑度上升 {increase}：保持不变。",
    "None of the {n} settings that were measured kept the tolerance with room for other texts; the mildest, {policy}, raised the perplexity of the tuning texts by {increase}: leave it.":
        "测量过的 {n} 个设置都没有在守住容限的同时为其他文本留有余地；其中最温和的 {policy} 使调优文本的困惑度上升 {increase}：保持不变。",
    "None of the {n} settings that were tried could be measured ({parts}): leave it.": "试过的 {n} 个设置都无法测量（{parts}）：保持不变。",
    "No setting could be promised to stay within {tolerance} on other texts ({parts}): leave it.": "没有设置能保证在其他文本上不超过 {tolerance}（{parts}）：保持不变。",
    "{policy} {increase} over {n} texts, promised for others {bound}": "{policy} 在 {n} 段文本上为 {increase}，对其他文本的保证为 {bound}",
    "{policy} keeps {bytes} of {whole} ({share}) at {n} tokens.": "{policy} 在 {n} 个词元时保留 {whole} 中的 {bytes}（{share}）。",
    "On {n} texts that the search never saw the perplexity rises by {mean} (95% interval {low} to {high}).": "在搜索从未见过的 {n} 段文本上，困惑度变化 {mean}（95% 区间 {low} 至 {high}）。",
    "On {n} texts that the search never saw the perplexity rises by {mean}.": "在搜索从未见过的 {n} 段文本上，困惑度变化 {mean}。",
    "For other texts like these it is promised to stay within {tolerance}: the bound is {bound}.": "对其他同类文本保证不超过 {tolerance}：上界为 {bound}。",
    "The record: {rate} of {heads} heads give the first token over {threshold} of their weight; no sink recurs in its texts.":
        "记录显示：{heads} 个头中有 {rate} 把超过 {threshold} 的权重给了第一个词元；其文本中没有反复出现的汇。",
    "The record: {rate} of {heads} heads give the first token over {threshold} of their weight; sinks that recur in its texts: {policy}.":
        "记录显示：{heads} 个头中有 {rate} 把超过 {threshold} 的权重给了第一个词元；其文本中反复出现的汇：{policy}。",
    "With all else equal, {policy} instead of {other} changes the tuned loss by {change} nats.": "其余相同时，用 {policy} 代替 {other} 使调优损失变化 {change} 奈特。",
    "With all else equal, positions by {one} instead of {two} change the tuned loss by {change} nats.": "其余相同时，位置用 {one} 而非 {two} 使调优损失变化 {change} 奈特。",
    "no sinks": "不保留汇",
    "Of what single layers lose when they alone forget, layers {layers} lose {share}.": "在各层单独遗忘所造成的损失中，第 {layers} 层占 {share}。",
    "{n} other setting could not be verified to keep the tolerance.": "另有 {n} 个设置未能验证守住容限。",
    "{n} other settings could not be verified to keep the tolerance.": "另有 {n} 个设置未能验证守住容限。",
    "{policy}, of no more bytes, was better than what the search found, beyond the interval, and is the plan.": "{policy} 字节数不更多，却比搜索所得更好（超出区间），因此成为计划。",
    "Beside {policy} of the same bytes the plan loses {change}{spread} nats: better beyond the interval.": "与同样字节数的 {policy} 相比，计划的损失相差 {change}{spread} 奈特：更好，超出区间。",
    "Beside {policy} of the same bytes the plan loses {change}{spread} nats: not told apart.": "与同样字节数的 {policy} 相比，计划的损失相差 {change}{spread} 奈特：无法区分。",
    "Beside {policy} of the same bytes the plan loses {change}{spread} nats: worse beyond the interval, but the other could not be verified to keep the tolerance.":
        "与同样字节数的 {policy} 相比，计划的损失相差 {change}{spread} 奈特：更差，超出区间，但未能验证对方守住容限。",
    "{n} settings were proposed: {measured} measured ({broke} refuted), {skipped} decided by what was known, {memory} ran out of memory, {failed} failed.":
        "共提出 {n} 个设置：测量 {measured} 个（其中 {broke} 个被否定），{skipped} 个由已知结果判定，{memory} 个内存不足，{failed} 个失败。",
    "Recall, as it is: {parts}.": "召回，现状：{parts}。",
    "Recall, the plan: {parts}.": "召回，计划：{parts}。",
    "still kept {right} {low} {high} of {n} (guessing {guess})": "仍保留的：{n} 题中答对 {right} {low} {high}（猜测 {guess}）",
    "evicted {right} {low} {high} of {n} (guessing {guess})": "已逐出的：{n} 题中答对 {right} {low} {high}（猜测 {guess}）",
    "any distance {right} {low} {high} of {n} (guessing {guess})": "任意距离：{n} 题中答对 {right} {low} {high}（猜测 {guess}）",
    "no question was answered": "没有回答任何问题",
    # refused and noted
    "The text is too short for this tolerance: {policy} would need about {more} verification texts of {length} tokens ({tokens} tokens; {n} were read).":
        "对这一容限而言文本太短：{policy} 约需 {more} 段各 {length} 个词元的验证文本（共 {tokens} 个词元；已读 {n} 段）。",
    "The text is too short for this tolerance: {policy} would need about {more} verification texts of {length} tokens ({tokens} tokens; {n} were read); effort 'thorough' reads more.":
        "对这一容限而言文本太短：{policy} 约需 {more} 段各 {length} 个词元的验证文本（共 {tokens} 个词元；已读 {n} 段）；投入 'thorough' 会读更多。",
    "Losses were measured on texts of {length} tokens, bytes are those of {n}: what is said of the loss holds for texts of the measured length.":
        "损失是在各 {length} 个词元的文本上测量的，字节数则按 {n} 个词元计：关于损失的结论只对所测长度的文本成立。",
    "{policy} hands its layers no rotation that could be turned to another position, so positions cannot be counted inside the cache: only those of the text were tried, and a stream ends where its trained positions end":
        "{policy} 没有把可转到其他位置的旋转交给各层，因此不能按缓存内位置计数：只试了文本中的位置，流也止于训练过的位置",
    "Losses were measured on texts of {length} tokens, bytes are those of {n}: what is said of the loss holds for texts of the measured length; effort 'thorough' reads longer ones.":
        "损失是在各 {length} 个词元的文本上测量的，字节数则按 {n} 个词元计：关于损失的结论只对所测长度的文本成立；投入 'thorough' 会读更长的文本。",
    "The record shows no sink in half of its texts over its threshold.": "记录中没有在一半文本里超过阈值的汇。",
    "No recent(n) + sinks(4) weighs as little as the plan, so there is none to set beside it.": "没有哪个 recent(n) + sinks(4) 像计划这样轻，因此没有可并列比较的。",
    "Recall was not measured: {policy}.": "没有测量召回：{policy}。",
    "the tokenizer gives two different facts the same tokens; use one that knows digits and words": "分词器把两个不同的事实编成相同的词元；请换一个认识数字和单词的分词器",
    # of a trial
    "over the tolerance after {i} of {n} texts": "读完 {n} 段中的 {i} 段后已超出容限",
    "mean over {share} of the tolerance": "均值超过容限的 {share}",
    # of a setting
    "{other}, positions: slots": "{other}（缓存内位置）",
    "{other}, positions: original": "{other}（文本中位置）",
}  # fmt: skip


def in_chinese(text: str) -> str | None:
    """The Chinese of a plan's sentence; None for one that is not known."""
    if len(text) > LONGEST:
        return None
    for pattern, chinese in _patterns():
        if found := pattern.fullmatch(text):
            return chinese.format(**{name: _part(name, value) for name, value in found.groupdict().items()})
    return None


def _part(name: str, value: str) -> str:
    """What stands in a place; only the open ones can be sentences again."""
    if name == "parts":
        return "；".join(in_chinese(part) or part for part in value.split("; "))
    return (in_chinese(value) or value) if name in ("policy", "other") else value


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """The sentences as patterns, the most particular first."""

    def pattern(sentence: str) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", sentence)
        made = [f"(?P<{p}>{PLACES.get(p, WORD)})" if i % 2 else re.escape(p) for i, p in enumerate(parts)]
        return re.compile("".join(made), re.DOTALL)

    order = sorted(PLAN, key=lambda sentence: -len(re.sub(r"\{\w+\}", "", sentence)))
    return [(pattern(sentence), PLAN[sentence]) for sentence in order]
