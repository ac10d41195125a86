import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "Attention on demand": "按需计算注意力", "Compute": "计算", "What is computed": "计算什么", "Scale": "刻度", "Stop": "停止", "Stopped.": "已停止。", "model": "模型", "token": "词元", "tokens at most": "词元数上限",
  "text (empty: the record’s)": "文本（留空：记录中的文本）", "text (empty: the packaged speeches)": "文本（留空：自带的演说）",
  "The weights of this head on a text, as the model computes them now. One query over every key, or up to 64 queries over bins of keys; the matrix of all tokens by all tokens is never made.":
    "模型当下在一段文本上算出的本头权重。一个查询对所有键，或至多 64 个查询对分组的键；从不构造全部词元乘全部词元的矩阵。",
  "what": "内容", "one query": "一个查询", "a block": "一块", "query (−1: the last)": "查询（−1：最后一个）", "queries from": "查询自", "to (−1: the last)": "至（−1：最后一个）", "the sink’s position": "汇 (sink) 的位置",
  "This studio was started without a model; start it with one:": "工作室启动时没有指定模型；请这样启动：", "This page is a file, and a file runs no model. In the studio this works:": "本页是文件，文件不能运行模型。在工作室中可用：",
  "Loading {model}…": "正在载入 {model}…", "Layer {l} of {n}…": "第 {l} 层，共到第 {n} 层…", "Computed over {n} tokens.": "已在 {n} 个词元上算完。",
  "without the sink": "去掉汇 (sink)", "log scale": "对数刻度", "everything, linear": "全部，线性", "layer {l}, head {k}": "第 {l} 层第 {k} 头",
  "A learned outlet takes {share}.": "学得的出口占 {share}。", "Query {q} of {n} tokens": "{n} 个词元中的查询 {q}", "the text goes on": "文本未完",
  "The sink (token {s}) takes {share}, all other keys together {rest}.": "汇（词元 {s}）占 {share}，其余所有键合计 {rest}。", "The sink (token {s}) takes {share} on average.": "汇（词元 {s}）平均占 {share}。",
  "Weight on every key": "每个键上的权重", "Keys with most weight": "权重最大的键", "key": "键", "weight": "权重", "of what the sink leaves": "占汇以外的份额",
  "Weights of query {q} over its keys; the largest shown is {most}": "查询 {q} 对各键的权重；所示最大值为 {most}", "weight (largest of {k} neighbouring keys)": "权重（相邻 {k} 个键中的最大值）", "Key {j}": "键 {j}", "weight {w}": "权重 {w}", "largest of keys {a} to {b}": "键 {a} 到 {b} 中最大者",
  "{rows} queries from {a} to {b}, over {n} keys in {bins} bins.": "从 {a} 到 {b} 的 {rows} 个查询，对分成 {bins} 组的 {n} 个键。", "A cell’s shade is the largest weight in its bin; the sum is true.": "格子的深浅是组内最大权重；总和为真实值。", "Queries by keys": "查询 × 键",
  "Weights of {rows} queries by bins of keys; the largest shown is {most}": "{rows} 个查询对各组键的权重；所示最大值为 {most}", "query ↓, key →": "查询 ↓，键 →", "Query {q}": "查询 {q}", "keys {a} to {b}": "键 {a} 到 {b}", "largest {max}, sum {sum}": "最大 {max}，总和 {sum}",
});
