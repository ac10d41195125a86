"""What a diagnosis says, in Chinese: the sentences of its verdict, and those that a record keeps in English.

A sentence is a template with named places, the same ones in both languages, so that both are made from one set of numbers.

>>> say("zh", "{mean:.3f} on average", mean=0.25)
'平均为 0.250'
>>> translated("Samples of 300 tokens are longer than the 256 positions the model was trained on.")
'样本长 300 个词元，超过了模型训练时的 256 个位置。'
>>> translated("something else") is None
True
"""

from __future__ import annotations

import functools
import re
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["KEPT", "LANGUAGES", "VERDICT", "say", "translated"]

LANGUAGES = ("en", "zh")

# Made here, from numbers: see sinkgate.report.summary.
VERDICT = {
    "{over} of {total} heads ({share:.0%}) give the first token more than {eps:g} of their attention; over all heads it gets {mean}, where attention that ignores the text would give it {null:.3f}.":
        "{total} 个头中有 {over} 个（{share:.0%}）把超过 {eps:g} 的注意力给了第一个词元；就所有头而言，它得到的质量份额{mean}，而不看文本的均匀注意力只会给它 {null:.3f}。",
    "{mean:.3f} on average (95% interval {low:.3f} to {high:.3f})": "平均为 {mean:.3f}（95% 区间 {low:.3f} 至 {high:.3f}）",
    "{mean:.3f} on average": "平均为 {mean:.3f}",
    "How sure: {samples} samples of {lengths} tokens; the 95% interval of the excess over uniform attention is above 0 in {sure} heads, below 0 in {under}, and cannot tell in {open}.":
        "把握多大：{samples} 个样本，每个 {lengths} 个词元；超出均匀注意力部分的 95% 区间在 {sure} 个头中高于 0，在 {under} 个头中低于 0，在 {open} 个头中无法判断。",
    "How sure: one sample of {lengths} tokens, so there is no interval; give more text or --samples.":
        "把握多大：只有一个 {lengths} 个词元的样本，因此没有区间；请给更多文本或加大 --samples。",
    "{low} to {high}": "{low} 至 {high}",
    "A learned sink logit takes {mean:.3f} of the attention on average (up to {top:.3f}): these rows sum to one minus that over the tokens.":
        "学习得到的汇 logit 平均取走 {mean:.3f} 的注意力（最多 {top:.3f}）：这些行在词元上的权重之和等于一减去它。",
    "{missing} of {total} layers cannot be measured ({which}): {reasons}.": "{total} 层中有 {missing} 层无法测量（{which}）：{reasons}。",
    "Evicting that token would multiply the rest of these heads' mix by {amplification:.3g} (median, predicted, 1/(1 − p)).":
        "移除该词元会使这些头其余内容的混合放大 {amplification:.3g} 倍（中位数，预测值，1/(1 − p)）。",
    "What these sinks write cannot be told: {reason}.": "无法得知这些汇写入了什么：{reason}。",
    "unknown": "原因未知",
    "Attention is not contribution: what these {known} heads write for that token is {median:.2f} of what they write in all (median). {no_op} are near no-ops (under {low}); in {broadcast} it is most of what is written (over {high}): a constant that is broadcast, or a head that writes little else.":
        "注意力不等于贡献：这 {known} 个头为该词元写入的量是其总写入量的 {median:.2f}（中位数）。其中 {no_op} 个近似空操作（低于 {low}）；在 {broadcast} 个头中它占写入量的大部分（高于 {high}）：那是一个被广播的常量，或者这个头几乎不写别的东西。",
    "1 other position takes more than {eps:g} in some head ({delimiter} delimiters, {other} other tokens; {secondary} with a hidden state like the first token's); most: {named}.":
        "另有 1 个位置在某个头中得到超过 {eps:g} 的权重（分隔符 {delimiter} 个，其他词元 {other} 个；其中 {secondary} 个的隐藏状态与第一个词元相似）；最多的是：{named}。",
    "{others} other positions take more than {eps:g} in some head ({delimiter} delimiters, {other} other tokens; {secondary} with a hidden state like the first token's); most: {named}.":
        "另有 {others} 个位置在某个头中得到超过 {eps:g} 的权重（分隔符 {delimiter} 个，其他词元 {other} 个；其中 {secondary} 个的隐藏状态与第一个词元相似）；最多的是：{named}。",
    "{token!r} at {position}": "位置 {position} 的 {token!r}",
    "The first token is no sink here. Instead {local:.2f} of the attention stays within the last {window} tokens (uniform: {null:.2f}), and a head's strongest other key takes {top:.2f} on average. Head kinds: {kinds}.":
        "第一个词元在这里不是汇。注意力的 {local:.2f} 留在最近 {window} 个词元之内（均匀注意力：{null:.2f}），而一个头中最强的其他键平均取走 {top:.2f}。头的类型：{kinds}。",
    "The first token is no sink here. Instead {local:.2f} of the attention stays within the last {window} tokens (uniform: {null:.2f}); no other key is seen by enough queries to say what it takes. Head kinds: {kinds}.":
        "第一个词元在这里不是汇。注意力的 {local:.2f} 留在最近 {window} 个词元之内（均匀注意力：{null:.2f}）；没有其他键被足够多的查询看到，无法说明它取走多少。头的类型：{kinds}。",
    "A massive activation: {value:.4g} in dimension {dimension} at token {token!r} (position {position}) before layer {layer}, {ratio:,.0f} times the median there.":
        "巨量激活：在第 {layer} 层之前，词元 {token!r}（位置 {position}）的第 {dimension} 维为 {value:.4g}，是该处中位数的 {ratio:,.0f} 倍。",
    "The largest activation: {value:.4g} in dimension {dimension} at token {token!r} (position {position}) before layer {layer}, {ratio:,.0f} times the median there.":
        "最大的激活：在第 {layer} 层之前，词元 {token!r}（位置 {position}）的第 {dimension} 维为 {value:.4g}，是该处中位数的 {ratio:,.0f} 倍。",
    "{count} {kind}": "{kind} {count} 个",
    "sink": "汇", "previous": "前一词元", "local": "局部", "uniform": "均匀", "specific": "特定", "none": "无", "unmeasured": "未测量",
    "Where {name} puts its attention": "{name} 把注意力放在哪里",
    "{sources} and {more} more": "{sources} 等，另有 {more} 段",
}  # fmt: skip

# Kept by a record in English, with its places filled in: notes, what stands before a text, and why something was not measured.
KEPT = {
    "Samples of {longest} tokens are longer than the {limit} positions the model was trained on.":
        "样本长 {longest} 个词元，超过了模型训练时的 {limit} 个位置。",
    "Samples of {longest} tokens are short: a key needs {queries} queries to count, and uniform attention alone gives the first token a large share.":
        "样本只有 {longest} 个词元，偏短：一个键至少要有 {queries} 个查询才算数，而仅凭均匀注意力第一个词元就会得到很大的份额。",
    "The hidden states are not one stream of [batch, tokens, width], so the residual stream was not read.":
        "隐藏状态不是形如 [批次, 词元, 宽度] 的单一流，因此没有读取残差流。",
    "At detail 'first' a head whose first token leaves less than 0.001 to the rest at some query has no margin and no amplification: the kernel's log-sum-exp has no more digits. Use detail 'keys' or 'full'.":
        "在细节级别 “first” 下，若某个查询处第一个词元留给其余部分的不到 0.001，则该头没有间隔也没有放大倍数：内核的 log-sum-exp 没有更多有效位。请用细节级别 “keys” 或 “full”。",
    "The weights were read by {how}; the compiled kernels read the same at about half the time.":
        "权重由 {how} 读取；编译好的内核读取同样的内容约需一半时间。",
    "{name} attends more than once in a pass; its first call is read": "{name} 在一次前向中多次调用注意力；读取的是第一次调用",
    "none was added, as asked": "按要求没有添加",
    "none was added: the tokenizer adds none by itself": "没有添加：分词器本身不添加",
    "{token} was put first, as asked": "按要求在最前面放了 {token}",
    "{token} was put first, as the tokenizer does by itself": "分词器自己在最前面放了 {token}",
    "unknown": "未知",
    "the first token": "第一个词元",
    "the token at position {position}": "位置 {position} 的词元",
    "each text's sink further in": "每段文本中靠后的汇",
    "each text's strongest sink": "每段文本中最强的汇",
    "untouched": "未改动",
    "evict": "移除",
    "evict from query {burn}": "从查询 {burn} 起移除",
    "masked from the start": "从一开始就遮住",
    "scalar gate": "标量门",
    "constant gate": "常数门",
    "constant gate, v_s = 0": "常数门，v_s = 0",
    "transplant: another text": "移植：另一段文本",
    "transplant: BOS": "移植：BOS",
    "transplant: mean of other texts": "移植：其他文本的均值",
    "key kept, value 0 from query 1": "保留键，从查询 1 起值为 0",
    "mean value": "均值",
    "massive activations to 0": "巨量激活置 0",
    "massive activations to their mean": "巨量激活置为其均值",
    "no output_weight was given": "没有给出 output_weight",
    "{mixers} did not go through transformers' attention interface": "{mixers} 没有经过 transformers 的注意力接口",
    "{layer} does not attend from tokens to tokens: {queries} queries and {keys} keys for {tokens} tokens":
        "{layer} 不是从词元到词元的注意力：{tokens} 个词元对应 {queries} 个查询和 {keys} 个键",
    "the heads of {layer} see different keys": "{layer} 的各个头看到的键不同",
    "{layer} computes more than sinkgate can read: rebuilding its output misses by {error}":
        "{layer} 的计算超出了 sinkgate 能读取的范围：重建其输出时的偏差为 {error}",
    "the outlet of {layer} gates what all its heads write together": "{layer} 的出口对其所有头合在一起的写入加门控",
    "no module of {layer} takes its {width} head outputs": "{layer} 中没有模块接收它的 {width} 个头输出",
    "{module} takes the head outputs of {layer}, but is not linear": "{module} 接收 {layer} 的头输出，但它不是线性的",
    "{count} modules of {layer} take its head outputs: {modules}": "{layer} 中有 {count} 个模块接收它的头输出：{modules}",
    "what {layer} writes goes through {norm}, which is neither a norm with a plain gain nor linear":
        "{layer} 写入的内容要经过 {norm}，它既不是带普通增益的归一化，也不是线性的",
    "{module} is not fed by the head outputs of {attention}": "{module} 的输入不是 {attention} 的头输出",
    "{attention} changes its head outputs before the output map by something that is not a gate":
        "{attention} 在输出映射之前以并非门控的方式改变了头输出",
    "{attention} does not hand its head outputs to {module} unchanged in size": "{attention} 交给 {module} 的头输出大小发生了改变",
    "its weights are finite, so numbers overflowed on the way: try dtype float32 or bfloat16":
        "它的权重都是有限值，因此是中途数值溢出：请试 dtype float32 或 bfloat16",
}  # fmt: skip


def say(language: str, sentence: str, **values: Any) -> str:
    """A sentence of the verdict in one of the languages, filled in.

    Raises:
        ArgumentError: a language that is not known.
    """
    if language not in LANGUAGES:
        raise ArgumentError(f"language must be one of {', '.join(LANGUAGES)}, got {language!r}")
    return (sentence if language == "en" else VERDICT[sentence]).format(**values)


def translated(text: str) -> str | None:
    """The Chinese of a sentence that a record keeps in English; None for one that is not known."""
    for pattern, chinese in _patterns():
        if found := pattern.fullmatch(text):
            return chinese.format(**found.groupdict())
    return None


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """The sentences as patterns, the most particular first."""

    def pattern(sentence: str) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", sentence)
        return re.compile("".join(f"(?P<{p}>.+)" if i % 2 else re.escape(p) for i, p in enumerate(parts)), re.DOTALL)

    order = sorted(KEPT, key=lambda sentence: -len(re.sub(r"\{\w+\}", "", sentence)))
    return [(pattern(sentence), KEPT[sentence]) for sentence in order]
