import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "Plan": "计划",
  // page.js
  "Nothing has to be given up.": "无需放弃任何东西。", "Keep {setting}, positions {positions}: {bytes} of {whole} ({share}) at {n} tokens.": "保留 {setting}，位置按{positions}计：在 {n} 个词元时为 {whole} 中的 {bytes}（{share}）。",
  "On {n} text that the search never saw, the perplexity changes by {value}.": "在搜索从未见过的 {n} 段文本上，困惑度变化 {value}。", "On {n} texts that the search never saw, the perplexity changes by {value}.": "在搜索从未见过的 {n} 段文本上，困惑度变化 {value}。",
  "For other texts like these it is promised to stay within {value}.": "对其他同类文本保证不超过 {value}。",
  "memory": "内存", "latency": "延迟", "quality": "质量", "at most {n} of keys and values": "键和值最多 {n}", "perplexity at most {n} higher": "困惑度最多升高 {n}", "at most {n} of weights": "权重最多 {n}", "{n} tokens": "{n} 个词元",
  "goal: {goal}": "目标：{goal}", "effort: {effort}": "投入：{effort}", "quick": "快速", "default": "默认", "thorough": "彻底",
  "The lines to paste": "可粘贴的代码", "Copy": "复制", "Copied": "已复制", "Select and copy it": "请自行选中并复制",
  "class": "类", "run as": "运行方式", "fingerprint": "指纹", "asked for": "要求", "length of a text": "每段文本长度", "{n} samples of {tokens} tokens": "{n} 个样本，各 {tokens} 个词元", "versions": "版本", "threads": "线程", "time": "用时", "{n} seconds": "{n} 秒", "{n} minutes": "{n} 分钟",
  "Across": "横轴", "Upwards": "纵轴", "Leave it as it is": "保持现状", "Change what the cache keeps": "改变缓存所保留的内容", "As it is, and with the plan": "原样与计划对照", "What changes": "有何变化", "The frontier": "前沿", "Why": "理由", "Refused": "被拒绝的", "Notes": "附注", "What is recalled": "能召回什么",
  "Perplexity can hide a dead memory: facts are asked for at growing distances, of the model as it is and with the plan.": "困惑度可能掩盖已失效的记忆：这里按越来越远的距离提问事实，对照模型的现状与计划。",
  "Fewer bits": "更少的比特", "Where forgetting hurts": "遗忘在哪里代价大", "Evidence": "依据", "This plan lacks what its page goes by; it cannot be drawn.": "这份计划缺少页面所需的内容，无法绘制。",
  "bytes": "字节", "milliseconds": "毫秒", "whole text": "整段文本", "last quarter": "最后四分之一",
  // data.js
  "held": "守住", "refuted": "被否定", "skipped": "未测量", "failed": "失败", "out of memory": "内存不足",
  // frontier.js
  "the plan, verified": "计划，经验证", "recent + sinks(4) of the same bytes, verified": "同样字节数的 recent + sinks(4)，经验证", "as it is": "原样", "failed, or out of memory": "失败或内存不足", "kept, when tuned": "调优时守住", "trial {n}": "试验 {n}", "trial {n}, the plan when tuned": "试验 {n}，调优时的计划",
  "{n} text": "{n} 段文本", "{n} texts": "{n} 段文本", "on the frontier": "在前沿上", "No setting has a loss of its last quarter.": "没有设置记录最后四分之一的损失。", "No setting was measured.": "没有测量任何设置。",
  "no other measured one beats it": "其他测得的都不胜过它", "the tolerance, {n}": "容限 {n}", "the tolerance, of whole texts, {n}": "整段文本的容限 {n}", "the budget, {n}": "预算 {n}", "a step, predicted: {low} to {high}": "每步（预测）：{low} 至 {high}", "cache: {low} to {high}": "缓存：{low} 至 {high}",
  "perplexity increase": "困惑度增幅", "perplexity increase in the last quarter of a text": "文本最后四分之一的困惑度增幅", "bytes of the cache, predicted (log)": "缓存字节数，预测（对数）", "milliseconds of a step, predicted": "每步毫秒数，预测",
  "What each setting weighs and costs": "各设置的大小与代价", "The table below has the same numbers.": "下面的表格有同样的数字。",
  "Circles are trials, on the texts that were tuned on; a ring is one that no other beats in loss, bytes and milliseconds at once; struck ones broke the tolerance.":
    "圆点是在调优文本上的试验；带环的是在损失、字节和毫秒上没有其他设置同时胜过的；打叉的超出了容限。",
  "A second ring marks the plan; it and what stands beside it are drawn once more where other texts put them, with their 95% intervals.": "外加一环的是计划；它和对照另按其他文本的结果再画一次，带 95% 区间。",
  "Arrows at the edge: {n} far beyond it.": "边缘的箭头：{n} 个远在图外。", "Milliseconds are those of the fitted model of a step; the step that was measured is in the figures above.": "毫秒数来自拟合的每步模型；实测的每步用时见上表。",
  "mark": "标记", "trial": "试验", "increase": "增幅", "texts": "文本数",
  // figures.js
  "The promise beside the tolerance": "保证与容限对照", "measured": "实测", "promised for other texts": "对其他文本的保证", "the tolerance": "容限", "promised ≤ {n}": "保证 ≤ {n}", "measured {n}": "实测 {n}", "quantity": "量",
  "The interval is that of these texts; the promise is a bound for other texts of the same kind, which allows for as many settings as could be tried.": "区间针对这些文本；保证则是对其他同类文本的上界，已计入可能尝试的设置个数。",
  "What a layer loses when it alone forgets": "单独一层遗忘时的损失", "nats a token": "每词元奈特",
  "One layer keeps a short window and its sinks, all others keep everything: the rise of the loss on one of the tuning texts. It decides which layers may keep less.": "只让一层保留短窗口和汇，其余各层保留全部：在一段调优文本上损失的上升。它决定哪些层可以少保留。",
  // tables.js
  "cache at {n} tokens, predicted": "{n} 个词元时的缓存，预测", "{n} of it": "为其 {n}", "cache at {n} tokens, measured": "{n} 个词元时的缓存，实测", "predicted {n}": "预测 {n}", "a step at {n} tokens, predicted": "{n} 个词元时的一步，预测", "a step at {n} tokens, measured": "{n} 个词元时的一步，实测",
  "perplexity increase, when tuned": "困惑度增幅，调优时", "perplexity increase, verified on other texts": "困惑度增幅，在其他文本上验证", "in the last quarter of a text": "文本的最后四分之一", "asked: {n}": "要求：{n}", "KL divergence, nats a token": "KL 散度，每词元奈特", "same most likely token": "最可能词元相同",
  "the plan": "计划", "the plan: leave it": "计划：保持不变", "beside": "对照", "frontier": "前沿", "a step, ms": "每步毫秒", "why": "原因", "verified all the same": "但通过了验证", "Every setting that was measured": "测量过的每个设置",
  "{all} settings were proposed; {measured} were measured, {skipped} were decided by what was known and are only counted.": "共提出 {all} 个设置；测量了 {measured} 个，{skipped} 个由已知结果判定，只计数。",
  "Keys and values in fewer bits": "键和值用更少的比特", "Weights in fewer bits": "权重用更少的比特", "Activations in fewer bits": "激活用更少的比特", "Fewer bits: {place}": "更少的比特：{place}", "below, beyond the interval": "更低，超出区间", "above, beyond the interval": "更高，超出区间", "not told apart": "无法区分",
  "won": "胜出", "size": "大小", "loss rises by": "损失上升", "beside uniform": "与均匀相比", "how": "方式", "{arm} was not measured: {why}": "{arm} 没有测量：{why}", "The texts": "文本", "tuned on": "用于调优", "verified on": "用于验证", "for what": "用途", "source": "来源", "bits": "比特",
});
